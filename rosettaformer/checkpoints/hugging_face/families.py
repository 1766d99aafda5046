"""The supported families of models, by what `config.json` calls their type."""

from collections.abc import Mapping

from . import bert, distilbert, exaone4, gemma2, gpt2, gpt_neo, opt, phi3, roberta, smollm3, starcoder2
from . import plain_decoders as plain
from .family import Family

# where several families can express a config, it is written as the first of them
_FAMILIES = (
    bert.FAMILY, gpt2.FAMILY, plain.LLAMA, plain.MISTRAL, plain.QWEN2, plain.QWEN3, plain.GEMMA,
    gemma2.FAMILY, gemma2.GEMMA3, phi3.FAMILY, plain.OLMO2, smollm3.FAMILY, plain.MINISTRAL, plain.OLMO3,
    plain.GLM, plain.GLM4, plain.STABLELM, starcoder2.FAMILY, plain.SEED_OSS, exaone4.FAMILY,
    plain.ERNIE4_5, plain.HELIUM, gpt_neo.FAMILY, opt.FAMILY, roberta.FAMILY, roberta.XLM_ROBERTA,
    roberta.CAMEMBERT, distilbert.FAMILY,
)  # fmt: skip
FAMILIES: Mapping[str, Family] = {family.model_type: family for family in _FAMILIES}
