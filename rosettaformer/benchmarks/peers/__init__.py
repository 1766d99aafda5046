"""The rows. numpy, torch, ctranslate2, tf and jax are processes: each defines `describe(device)` and `rows(problem, device)`."""
