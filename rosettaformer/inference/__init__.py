"""Using a checkpoint: text in, text, classes or attention out."""
