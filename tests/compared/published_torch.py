"""Small transformers models."""

from functools import partial

import transformers
from published_sizes import NAMES, POOLERS, entries


def _model(model_type, seed=0, **changes):
    eager = {} if model_type == "t5" else {"attn_implementation": "eager", "experts_implementation": "eager"}
    given = entries(model_type, seed) | eager | changes
    config = getattr(transformers, f"{NAMES[model_type]}Config")(**given)
    return getattr(transformers, f"{NAMES[model_type]}Model")(config, **POOLERS.get(model_type, {}))


_of = partial(partial, _model)
bert, roberta, distilbert, gpt2, llama, mistral, qwen2, qwen3, gemma, t5, bart, vit, mixtral, qwen2_moe, qwen3_moe, gpt_oss = map(
    _of, NAMES
)
