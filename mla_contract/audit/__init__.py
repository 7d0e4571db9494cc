"""The source audit: reads a vLLM tree, never imports it."""
