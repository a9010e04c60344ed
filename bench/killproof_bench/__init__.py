"""The bench: figures that carry their conditions, and that a wrong result voids.

`cli` is the command line; `scenarios` holds one module per command.
`load` is the worker process, `observe` the process that watches from outside; both import the
standard library and the queue only, so that a worker's start costs little.
`measure` makes figures of samples, `ledger` judges whether the run was right, `result` is the
recorded outcome and `report` turns it into prose.
"""
