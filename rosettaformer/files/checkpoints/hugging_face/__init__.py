"""Folders of Hugging Face's transformers: config.json with safetensors or torch.save files, single or in shards. One table for each family.

`Checkpoint.foreign` holds what a folder says beyond the config, such as labels and token ids.
"""

from .families import FAMILIES
from .reading import Examination, examine, family_of, view
from .writing import companions, save

__all__ = ["FAMILIES", "LOAD_OPTIONS", "SAVE_OPTIONS", "Examination", "companions", "examine", "family_of", "save", "view"]

LOAD_OPTIONS = ("ignore", "spare")
SAVE_OPTIONS = ("max_shard_bytes", "tokenizer")
