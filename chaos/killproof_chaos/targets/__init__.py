"""The queues that can be judged by name."""
