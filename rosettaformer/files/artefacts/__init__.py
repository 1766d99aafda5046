"""Models as files with weights of their own: which format they are of, what they take and give, and how they are run."""
