"""Copies of shared functions, and fields that no longer mean what a reader thinks."""
