"""The core of the queue: schema, leases, transactions, durability."""
