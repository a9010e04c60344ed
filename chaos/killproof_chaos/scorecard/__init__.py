"""`killproof chaos scorecard`: many queues judged the same way, a row each.

`rows` says which queues, `making` judges each and confirms what was found, `cards` says what that
adds up to for each promise. A violation is printed as one only if it was seen again.
"""
