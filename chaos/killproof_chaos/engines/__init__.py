"""The engines: each executes a plan and records evidence."""
