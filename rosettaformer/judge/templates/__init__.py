"""Files that `new-port` copies or fills in."""

from pathlib import Path

TEMPLATES = Path(__file__).parent
