"""Which architecture a set of tensors belongs to, by their names."""

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from .recognise import CONVERT, ForeignError, Kind, model_type

__all__ = ["NATIVE", "describe", "refuse"]

_PORT = "this version converts torch.nn.Transformer alone; to check that model's code, begin a port with rosettaformer new-port"
NATIVE = r"(.*\.)?(en|de)coder\.layers\.\d+\.(self_attn|multihead_attn)\.in_proj_weight"  # of torch.nn.Transformer

MOST = 10_000  # names that are looked at

_BART_LAYER = r"(.*\.)?decoder\.layers\.\d+\.encoder_attn\.k_proj\.weight"
_EMBEDDING_NORM = r"(.*\.)?encoder\.layernorm_embedding\.weight"
_LAST_NORM = r"(.*\.)?encoder\.layer_norm\.weight"

# name, patterns that must all fit the name of some tensor; the first row that fits is taken
_FAMILIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("a Hugging Face RoBERTa", (r"(.*\.)?roberta\.encoder\.layer\.\d+\.attention\.self\.query\.weight",)),
    ("a Hugging Face DistilBERT", (r"(.*\.)?transformer\.layer\.\d+\.attention\.q_lin\.weight",)),
    ("a Hugging Face ALBERT", (r"(.*\.)?albert_layer_groups\..*",)),
    ("a Hugging Face BERT", (r"(.*\.)?bert\.encoder\.layer\.\d+\.attention\.self\.query\.weight",)),
    ("a Hugging Face BERT, or one of its kind", (r"(.*\.)?encoder\.layer\.\d+\.attention\.self\.query\.weight",)),
    ("a Hugging Face GPT-2, or one of its kind", (r"(.*\.)?h\.\d+\.attn\.c_attn\.weight",)),
    ("a Hugging Face GPT-NeoX", (r"(.*\.)?layers\.\d+\.attention\.query_key_value\.weight",)),
    ("a Hugging Face T5", (r"(.*\.)?block\.\d+\.layer\.\d+\.SelfAttention\.q\.weight",)),
    ("a Hugging Face Whisper", (r"(.*\.)?encoder\.conv1\.weight", _BART_LAYER)),
    ("a Hugging Face mBART", (_EMBEDDING_NORM, _LAST_NORM, _BART_LAYER)),
    ("a Hugging Face BART", (r"(.*\.)?shared\.weight", _EMBEDDING_NORM, _BART_LAYER)),
    ("a fairseq Transformer", (r"decoder\.(output_projection\.weight|version)", _BART_LAYER)),
    ("a Hugging Face Pegasus, or one of its kind", (_LAST_NORM, _BART_LAYER)),
    ("a Hugging Face Marian, or one of its kind", (_BART_LAYER,)),
    ("a Hugging Face OPT", (r"(.*\.)?decoder\.layers\.\d+\.self_attn\.k_proj\.weight", r"(.*\.)?decoder\.embed_positions\.weight")),
    ("a Hugging Face Llama, or one of its kind", (r"(.*\.)?layers\.\d+\.mlp\.(gate|gate_up)_proj\.weight",)),
    ("a Llama as Meta stores it", (r"layers\.\d+\.attention\.wq\.weight",)),
    ("an OpenNMT Transformer", (r"(.*\.)?transformer(_layers)?\.\d+\.self_attn\.linear_keys\.weight",)),
    ("a model of the Annotated Transformer", (r"(.*\.)?encoder\.layers\.\d+\.self_attn\.linears\.\d+\.weight",)),
)
_OTHER: tuple[tuple[str, str, str], ...] = (
    ("a state dict of torch.nn.Transformer", NATIVE, CONVERT),
    (
        "a state dict of torch.nn.TransformerEncoder or TransformerDecoder alone", r"layers\.\d+\.self_attn\.in_proj_weight",
        "save the module that holds it, and its embeddings, under the name encoder or decoder",
    ),
)  # fmt: skip


def describe(names: Iterable[str], path: str | Path) -> Kind | None:
    """What model the tensors are of, with two of their names; None where nothing is known.

    path: where they were read; a config.json of Hugging Face beside it tells more than names do.
    """
    names = list(itertools.islice(names, MOST))
    for what, pattern, advice in _OTHER:
        if example := _one(pattern, names):
            return Kind(f"{what} ({example}, ...)", advice)
    for what, patterns in _FAMILIES:
        examples = [_one(pattern, names) for pattern in patterns]
        if all(examples):
            return Kind(f"{_typed(path) or what} ({examples[-1]}, ...)", _PORT)
    if typed := _typed(path):
        return Kind(f"{typed} ({', '.join(names[:1])}, ...)", _PORT)
    return None


def refuse(names: Iterable[str], path: str | Path) -> None:
    """Raises ForeignError where the tensors' names are those of a known model."""
    if kind := describe(names, path):
        raise ForeignError(path, kind)


def _typed(path: str | Path) -> str | None:
    found = model_type(Path(path))
    return f"a Hugging Face model of type {found!r}" if found else None


def _one(pattern: str, names: Iterable[str]) -> str | None:
    return next((name for name in names if re.fullmatch(pattern, name)), None)
