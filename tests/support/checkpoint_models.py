"""Helpers of the checkpoint tests: small models with visible weights, canonical files with arbitrary claims, and torch modules."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reference_numpy import TransformerConfig, parameters, preset
from rosettaformer.files.checkpoints import canonical, container

SIZES = {
    "source_vocabulary": 37,
    "target_vocabulary": 31,
    "model_width": 12,
    "heads": 3,
    "key_value_heads": 3,
    "key_size": 4,
    "value_size": 4,
    "feed_forward_width": 20,
    "encoder_layers": 2,
    "decoder_layers": 1,
}
CONFIG = preset("nn_transformer", **SIZES)
TIED = preset("feed_forward_dropout", **SIZES | {"target_vocabulary": 37})
BIAS = "logits.bias"
QUERY = "encoder.layers.1.self_attention.query.kernel"


def random_parameters(config: TransformerConfig, dtype: str = "float32", seed: int = 0) -> dict[str, np.ndarray]:
    """Draws every parameter at random and of visible size, so that no two can be confused."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(getattr(ml_dtypes, dtype, dtype)) for name, shape in parameters.shapes(config).items()}


def assert_same_bits(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> None:
    assert list(left) == list(right)
    for name, array in left.items():
        assert array.dtype == right[name].dtype and array.shape == right[name].shape, name
        assert array.tobytes() == right[name].tobytes(), name


def write_raw(path: Path, tensors: dict[str, np.ndarray], claimed: TransformerConfig = CONFIG, **metadata: str | None) -> Path:
    """Writes a file in the canonical format without checking its contents."""
    fields = canonical.metadata(claimed) | metadata
    container.write(path, tensors, {name: text for name, text in fields.items() if text is not None})
    return path


# the edit of the tensors, and what the message must mention
DAMAGES: dict[str, tuple[Callable[[dict[str, np.ndarray]], Any], str]] = {
    "missing": (lambda t: t.pop(QUERY), f"missing {QUERY} of shape (12, 3, 4)"),
    "extra": (lambda t: t.update({"decoder.more": np.zeros(3, np.float32)}), "unexpected decoder.more"),
    "misnamed": (
        lambda t: t.update({QUERY.replace("kernel", "kernal"): t.pop(QUERY)}),
        f"missing {QUERY} of shape (12, 3, 4) (nearest: {QUERY.replace('kernel', 'kernal')})",
    ),
    "transposed": (
        lambda t: t.update({QUERY: t[QUERY].T}),
        f"{QUERY} is transposed: has axes reversed, shape (4, 3, 12); must have shape (12, 3, 4)",
    ),
    "transposed table": (
        lambda t: t.update({"source_embedding.table": t["source_embedding.table"].T}),
        "source_embedding.table is transposed: has axes reversed, shape (12, 37); must have shape (37, 12)",
    ),
    "permuted": (lambda t: t.update({QUERY: t[QUERY].transpose(1, 0, 2)}), f"{QUERY} must have shape (12, 3, 4); got (3, 12, 4)"),
    "shape": (lambda t: t.update({QUERY: t[QUERY].reshape(12, 12)}), f"{QUERY} must have shape (12, 3, 4); got (12, 12)"),
    "mixed dtype": (lambda t: t.update({QUERY: t[QUERY].astype(np.float16)}), f"{QUERY} must be float32 like most tensors; got float16"),
    "wrong dtype": (
        lambda t: t.update({QUERY: t[QUERY].astype(np.int32)}),
        f"{QUERY} must be one of float64, float32, bfloat16, float16; got int32",
    ),
    "nan": (lambda t: t[BIAS].__setitem__(slice(2), np.nan), f"{BIAS} must be finite; got 2 NaN and 0 infinite of 31 values"),
    "infinite": (lambda t: t[BIAS].__setitem__(0, -np.inf), f"{BIAS} must be finite; got 0 NaN and 1 infinite of 31 values"),
}
CHOICES: dict[str, Any] = {
    "activation": "relu",
    "norm_placement": "post",
    "epsilon": 1e-5,
    "scale_embedding": True,
    "share_embeddings": False,
    "tie_logits": False,
    "padding_id": 0,
    "dropout_rate": 0.1,
    "attention_dropout_rate": 0.1,
    "hidden_dropout_rate": 0.1,
    "heads": 3,
}
NAMES: dict[str, Any] = {"source_embedding": "source", "target_embedding": "target.weight", "logits": "generator"}
FLAGS = tuple(word for name, value in NAMES.items() for word in ("--name", f"{name}={value}"))
CONVERT = ("--from", "canonical", "--to", "canonical")
FROM_TORCH = ("--from", "torch-transformer", "--to", "canonical")


def torch_model(
    width: int = 12,
    heads: int = 3,
    layers: tuple[int, int] = (2, 1),
    hidden: int = 20,
    *,
    vocabularies: tuple[int, int] = (37, 31),
    tie: bool = False,
    seed: int = 0,
    **options: Any,
) -> Any:
    """A typical user model: embeddings, positions as a buffer, nn.Transformer, an output layer; all parameters random and visible."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(seed)
    model = nn.Module()
    model.source, model.target = nn.Embedding(vocabularies[0], width), nn.Embedding(vocabularies[1], width)
    model.transformer = nn.Transformer(width, heads, *layers, hidden, batch_first=True, **options)
    model.generator = nn.Linear(width, vocabularies[1])
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    if tie:
        model.target = model.source
        model.generator.weight = model.source.weight
    model.register_buffer("pe", torch.zeros(1, 50, width))
    return model.eval()


def state_of(model: Any) -> dict[str, np.ndarray]:
    pytest.importorskip("torch")
    from impl_torch import weights

    return {name: weights.to_numpy(tensor) for name, tensor in model.state_dict().items()}
