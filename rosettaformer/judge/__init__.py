"""The judge: cases, tolerances, comparison, and the runner that brings ports before them."""
