"""The gate: is this change slower than what it changes? Read `sequential.py` first."""
