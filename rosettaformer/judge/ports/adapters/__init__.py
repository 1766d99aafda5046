"""Adapters: one for each framework, for the modules of any port."""
