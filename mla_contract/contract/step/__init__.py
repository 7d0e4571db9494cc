"""What a clause is given: one record with its batch, the numbers of the configuration, and what happened around it."""
