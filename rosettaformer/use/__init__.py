"""What people do with a model: use it, train it, plan its training."""
