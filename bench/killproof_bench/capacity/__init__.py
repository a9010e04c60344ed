"""`killproof bench capacity`: how much this machine can carry, and what is in the way of more.

`result` is what a run leaves behind. `question` reads what is asked for. `study` runs the phases:
`solo`, `closed` and `search` measure, by the processes of `pool` and `member`; `terms` takes the
models' terms from what they wrote down. `models`, `simulation` and `predictor` predict, `answer`
and `report` tell, `compiled` puts the result together: all of these are pure.
"""
