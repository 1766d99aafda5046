"""Trains any backend on a task, and translates with the result.

tasks/ gives pairs of texts, tokens.py turns them into ids, corpus.py into batches of few shapes; session.py trains, store.py keeps
checkpoints; answers.py and translator.py answer. comparison.py trains several backends beside the reference.
"""
