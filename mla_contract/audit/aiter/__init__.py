"""Calls into aiter, bound against the signatures that its sources show."""
