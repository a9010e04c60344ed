"""`killproof chaos prove`: every engine that can judge a target, within a budget, and one verdict.

`dealing` says what is run (a pure function of target, budget and seed, so that shards agree on it),
`running` runs it, a command of `killproof chaos` in a process of its own each, and `verdict` makes
one verdict of what came of all of them. `stores` reads and joins what shards have left.
"""
