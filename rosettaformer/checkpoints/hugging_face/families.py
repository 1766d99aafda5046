"""The supported families of models, each the `FAMILY` of a module."""

from collections.abc import Mapping
from importlib import import_module

from .family import Family

# where several families can express a config, it is written as the first of them
_MODULES = (
    "bert", "gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3",
    "olmo2", "smollm3", "ministral", "olmo3", "glm", "glm4", "stablelm", "starcoder2", "seed_oss",
    "exaone4", "ernie4_5", "helium", "gpt_neo", "opt", "roberta", "xlm_roberta", "camembert",
    "distilbert",
)  # fmt: skip
_FAMILIES: tuple[Family, ...] = tuple(import_module(f".{name}", __package__).FAMILY for name in _MODULES)
FAMILIES: Mapping[str, Family] = {family.model_type: family for family in _FAMILIES}
