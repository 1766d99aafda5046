"""Shared by all packages; nothing here depends on the judge."""
