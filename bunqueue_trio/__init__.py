"""A job-queue server on Trio: one process, one SQLite file."""

__version__ = "0.1.0"
