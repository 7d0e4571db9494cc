"""Tests of the contract as types."""
