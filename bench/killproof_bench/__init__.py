"""The bench: figures that carry their conditions, and that a wrong result voids.

`cli` is the command line, with a module for each larger command; `scenarios` holds one module per
question.
`load` is a worker or producer process, `pacing` its schedule and `recording` what it writes down;
`observe` is the process that watches from outside. All import the standard library and the queue
only, so that a process's start costs little.
`sampling` cuts the measured time out of the recordings, `measure` makes figures of samples,
`anatomy` tells where a call's time went, `cells` puts rounds together, `ledger` judges whether the
run was right. `result` is the recorded outcome; `report` and its neighbours turn it into prose, and
`page` into one offline HTML file.
"""
