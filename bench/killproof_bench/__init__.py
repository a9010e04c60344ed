"""The bench: claim throughput, latency and fairness under contention."""
