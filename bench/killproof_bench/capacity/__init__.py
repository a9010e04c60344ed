"""`killproof bench capacity`: how much this machine can carry, and what is in the way of more.

`result` is what a run leaves behind. `question` reads what is asked for. `models` and `simulation`
predict, `verdict` and `sizing` answer: all of them pure. `measurement` and `search` run the load.
"""
