"""A kernel provider of the smallest kind, written by following docs/add-a-provider.md."""
