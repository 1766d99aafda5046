"""The rows. numpy, torch, ctranslate2, tf and jax run in processes: each defines `describe(device)` and `rows(problem, device)`."""
