"""Kernel providers and their registry; providers do not import one another."""
