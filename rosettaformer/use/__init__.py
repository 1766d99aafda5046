"""Uses models: generates and classifies text, trains, and plans training."""
