"""Detection power: what the harness provably finds, how surely, how fast, and when it cries wolf.

Every broken queue of the gallery is run many times under the engine and the options that it names
(`trials`), in processes that have imported everything once (`lanes`, `lane`). What came of each run
is a line in the store; `matrix` makes one record of them all, with intervals from `estimates`.
"""
