"""What attention metadata must be: Protocols in small tiers, and the records that travel with them.

Importing this package loads no array library; the array types in the annotations exist for type checkers.
"""
