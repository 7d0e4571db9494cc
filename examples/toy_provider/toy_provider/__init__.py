"""A kernel provider of the smallest kind, made by following docs/add-a-provider.md."""
