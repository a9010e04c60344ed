"""One small program per queue, run inside that queue's own environment by `loop.py`."""
