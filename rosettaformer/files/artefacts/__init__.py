"""Exported models: detects their format, describes their inputs and outputs, and runs them."""
