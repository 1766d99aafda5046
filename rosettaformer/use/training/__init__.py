"""Trains any backend on a task.

tasks/ gives pairs of texts, tokens.py turns them into ids, corpus.py into batches of few shapes; session.py trains, and checkpoint_store.py
keeps checkpoints; answers.py answers. placing.py and launching.py put a run on several devices, together.py makes its
processes agree, failing.py says what ended them. comparison.py trains several backends beside the reference.
"""
