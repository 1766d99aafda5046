"""Reads and writes Hugging Face checkpoints: a folder with config.json and its weights.

The weights are safetensors or torch.save files, single or sharded. Each model family is one table.
`Checkpoint.foreign` holds what the config does not express, such as labels and token ids.
"""

from .families import FAMILIES
from .reading import Examination, examine, family_of, view
from .writing import companions, save

__all__ = ["FAMILIES", "LOAD_OPTIONS", "SAVE_OPTIONS", "Examination", "companions", "examine", "family_of", "save", "view"]

LOAD_OPTIONS = ("ignore", "spare")
SAVE_OPTIONS = ("max_shard_bytes", "tokenizer")
