"""Trains any backend on a task.

tasks/ provides pairs of texts, tokens.py encodes them, corpus.py batches them; session.py trains,
checkpoint_store.py keeps checkpoints, answers.py decodes. comparison.py trains several backends
along with the reference. The code for several devices is in `rosettaformer.common.meshes`.
"""
