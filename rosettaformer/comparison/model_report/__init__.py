"""One page about one model in four implementations: what agrees, where errors grow, attention, training, speed and memory."""
