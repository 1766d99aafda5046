"""What is looked at before a runtime opens a file. Nothing of the file is run, and nothing is written; whatever a model does not need is
refused, by a ValueError of one sentence.
"""
