"""What is wrong with a target, before a run is spent on it: contract, surroundings, a trial.

A target that is wrong makes every verdict on its queue worthless, and nobody can tell the two apart
afterwards: a snapshot with a state of its own words looks like a job that never ended.
"""
