"""Other people's queues and killproof, doing the same work in the same run."""
