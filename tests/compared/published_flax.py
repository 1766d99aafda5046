"""Small Flax models of transformers 4, the last version that has them; `make` installs it in its own folder."""

import importlib
import sys
from functools import partial
from pathlib import Path

FOLDER = Path(sys.prefix) / "flax-transformers"
sys.path.insert(0, str(FOLDER))

import transformers  # noqa: E402
from published_sizes import NAMES, POOLERS, entries  # noqa: E402


def _module(model_type, seed=0):
    fixed = {"layer_norm_eps": 1e-5} if model_type == "roberta" else {}
    config = getattr(transformers, f"{NAMES[model_type]}Config")(**entries(model_type, seed), **fixed)
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_flax_{model_type}")
    return getattr(module, f"Flax{NAMES[model_type]}Module")(config, **POOLERS.get(model_type, {}))


_of = partial(partial, _module)
bert, roberta, distilbert, gpt2, llama, mistral, _, _, gemma, _, bart, vit, *_ = map(_of, NAMES)
