"""The harness that tries to kill a queue."""
