"""Training any backend on a task, and translating with what it has learned.

tasks/ gives pairs of texts, tokens.py makes ids of them, corpus.py batches of few shapes; session.py trains, store.py keeps checkpoints;
answers.py and translator.py answer. comparison.py trains several backends beside the reference.
"""

__all__: list[str] = []
