"""Files of models: checkpoints, and models exported with their weights."""
