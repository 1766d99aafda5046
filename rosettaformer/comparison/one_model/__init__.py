"""One model in several implementations: predictions, errors, attention, training, speed."""
