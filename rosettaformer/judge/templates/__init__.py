"""Files that `new-port` copies or fills in."""

from pathlib import Path

TEMPLATES = Path(__file__).parent


def like(encoder_decoder: bool) -> str:
    """Returns the name of the template that calls transformers."""
    return "like_seq2seq" if encoder_decoder else "like"
