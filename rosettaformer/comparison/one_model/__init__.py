"""One model in four implementations and in transformers: what agrees, where errors grow, attention, training, speed and memory."""
