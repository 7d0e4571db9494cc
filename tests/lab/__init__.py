"""The fault laboratory: planted faults of every field and kind, and how many of them are reported."""
