"""A file for each runtime: what it examines before it opens a file, and how it runs it."""
