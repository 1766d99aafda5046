"""The benchmarked rows. Each module defines `describe(device)` and `rows(problem, device)`."""
