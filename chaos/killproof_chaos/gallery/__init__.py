"""Deliberately broken queues: each shows one classic way to lose or to double a job."""
