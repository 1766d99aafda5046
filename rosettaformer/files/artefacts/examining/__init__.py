"""Examines files before a runtime opens them.

Nothing in a file runs, and nothing is written. Anything that a model does not need is rejected with
a ValueError of one sentence.
"""
