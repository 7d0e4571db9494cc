"""The clauses: what must hold between the facts of one batch, one file for each object."""
