"""The gate: is this change slower than what it changes? Read `verdict.py` first."""
