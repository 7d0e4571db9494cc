"""A backend of the smallest kind, written by following docs/add-a-backend.md."""
