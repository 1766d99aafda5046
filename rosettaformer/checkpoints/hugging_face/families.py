"""The supported families of models."""

from . import bert, gemma, gemma2, gemma3, gpt2, llama, mistral, olmo2, phi3, qwen2, qwen3, smollm3

_TABLES = (bert, gpt2, llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3, phi3, olmo2, smollm3)
FAMILIES = {table.FAMILY.model_type: table.FAMILY for table in _TABLES}  # by model_type
