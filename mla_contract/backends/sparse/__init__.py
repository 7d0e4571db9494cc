"""What every sparse MLA backend shares: configuration, the lowered step, the indexer, scratch memory."""
