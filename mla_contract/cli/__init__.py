"""The command line, one module a command; what several commands need stands in ``shared``."""
