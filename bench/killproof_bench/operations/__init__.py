"""Single figures: one operation of the queue beside the same work done bare, in one run.

`turns` runs the arms of a comparison in ABBA order, `bare_loop`, `enqueue_loop`, `producer` and
`idle_enqueuer` are the processes that do the work, `result` is the recorded outcome, `report` its
prose.  The scenarios of the same names put them together.
"""
