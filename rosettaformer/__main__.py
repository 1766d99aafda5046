"""`python -m rosettaformer`."""

from .cli import main

main()
