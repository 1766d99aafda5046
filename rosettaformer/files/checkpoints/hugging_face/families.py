"""The supported families of models, by what `config.json` calls their type."""

from collections.abc import Mapping
from importlib import import_module

from .family import Family

# if several families can express a config, the first one is written
_PLACES = (
    "bert.FAMILY", "gpt2.FAMILY", "plain_decoders.LLAMA", "plain_decoders.MISTRAL", "plain_decoders.QWEN2",
    "plain_decoders.QWEN3", "plain_decoders.GEMMA", "gemma2.FAMILY", "gemma2.GEMMA3", "phi3.FAMILY",
    "plain_decoders.OLMO2", "smollm3.FAMILY", "plain_decoders.MINISTRAL", "plain_decoders.OLMO3",
    "plain_decoders.GLM", "plain_decoders.GLM4", "plain_decoders.STABLELM", "starcoder2.FAMILY",
    "plain_decoders.SEED_OSS", "exaone4.FAMILY", "plain_decoders.ERNIE4_5", "plain_decoders.HELIUM",
    "gpt_neo.FAMILY", "opt.FAMILY", "roberta.FAMILY", "roberta.XLM_ROBERTA", "roberta.CAMEMBERT",
    "distilbert.FAMILY", "granite.GRANITE", "experts.MIXTRAL", "experts.QWEN2_MOE", "experts.QWEN3_MOE",
    "experts.OLMOE", "granite.GRANITE_MOE", "granite.GRANITE_MOE_SHARED", "experts.GPT_OSS",
    "experts.GLM4_MOE", "parallel_blocks.GPT_NEOX", "parallel_blocks.PHI", "parallel_blocks.COHERE",
    "parallel_blocks.COHERE2", "parallel_blocks.GPTJ", "parallel_blocks.CODEGEN",
    "encoder_decoders.MARIAN", "encoder_decoders.PEGASUS", "encoder_decoders.BART", "encoder_decoders.MBART",
    "encoder_decoders.M2M_100", "plain_decoders.ARCEE", "plain_decoders.NEMOTRON", "plain_decoders.HUNYUAN",
    "rotary_encoders.NOMIC_BERT", "rotary_encoders.MODERN_BERT", "opt.BIOGPT", "parallel_blocks.FALCON",
    "electra.FAMILY", "plain_decoders.OLMO", "plain_decoders.PERSIMMON",
)  # fmt: skip
_NAMED = [place.split(".") for place in _PLACES]
_FAMILIES: list[Family] = [getattr(import_module(f".{file}", __package__), name) for file, name in _NAMED]
FAMILIES: Mapping[str, Family] = {family.model_type: family for family in _FAMILIES}
