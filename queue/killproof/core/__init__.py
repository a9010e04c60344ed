"""The core of the queue: schema, leases, transactions, durability.

To read it in half an hour: `schema.sql` (the states), `jobs.py` (the operations), `database.py`
(how a transaction is written and made durable), then `turnstile.py`, `barrier.py` and
`liveness.py` (the kernel's part).  `model`, `errors`, `retry`, `clock`, `sync` and `host` hold no
surprises.
"""
