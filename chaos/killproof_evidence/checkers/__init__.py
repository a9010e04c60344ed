"""One pure function per promise."""
