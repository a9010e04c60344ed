"""Public queues as targets, a file each: the queue's own calls, and what its documents promise."""
