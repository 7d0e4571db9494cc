"""No deadline for drawn examples: shared machines are slow now and then."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
