"""Shipped to users: stand-ins and suites that they run on their own backends and providers."""
