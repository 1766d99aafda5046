"""The runtimes: each file examines a model before it is opened, and runs it."""
