"""A small, fast job queue on one SQLite file."""
