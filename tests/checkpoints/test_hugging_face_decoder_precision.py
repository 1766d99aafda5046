"""The decoders since Llama, of transformers, on a long text: in float64, and in float32 and bfloat16 as far as arithmetic of
the dtype allows. Windows and original rotary lengths are shorter than the text; one of two rows is left-padded.
"""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import FOUR
from decoder_folders import (
    BY_LAYER_TYPE,
    FIRST,
    GEMMAS,
    KINDS,
    MIXTURES,
    all_in_float64,
    drawn,
    entries_by_field,
    free_heads,
    loaded,
    rounding_once,
)
from hugging_face_folders import Drawn, assert_close, cases, made, ours, real, saved, theirs
from hugging_face_folders import loaded as loaded_in
from kinds import conformance

from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints.hugging_face import FAMILIES
from rosettaformer.judge.case import Case, numpy_dtype
from rosettaformer.judge.compare import compare
from rosettaformer.judge.expectation import tolerance

pytest.importorskip("transformers", reason="transformers is not installed")
torch = pytest.importorskip("torch")

LENGTH, WINDOW, ORIGINAL = 700, 100, 256
DENSE = [family for family in KINDS if family not in MIXTURES]  # in half precision a rounding may choose another expert
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
ROPES: dict[str, dict[str, Any]] = {
    "llama": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "qwen2": {"rope_type": "yarn", "factor": 4.0},
    "phi3": {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [1.0, 1.5, 2.0, 4.0],
             "partial_rotary_factor": 1.0},
    "gemma3_text": {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}, "sliding_attention": PLAIN},
    "olmo3": {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}, "sliding_attention": PLAIN},
}  # fmt: skip
# How much the RMS error may exceed the library's own in that dtype. The library rotates bfloat16 with rounded
# cosines and rounds attention logits before their softmax; it adds a bias before rounding, the reference after. Either may be
# more accurate; the largest measured ratio is 1.17.
MULTIPLE = 1.5


def lengthy(family: str) -> Drawn:
    """Returns four heads in two groups, with a free head size except in Phi-3, and three layers."""
    model, names = drawn(family, 0), entries_by_field(family)
    sizes = {
        "model_width": 24 if free_heads(family) else 32, "key_value_heads": 2, "heads": 4, "key_size": 8, "feed_forward_width": 20,
        "decoder_layers": 3,
    }  # fmt: skip
    settings = model.settings | {names[field]: size for field, size in sizes.items() if field in names} | {"max_position_embeddings": 1024}
    if "rotary_base" in names:
        settings["rope_parameters"] = copy.deepcopy(ROPES.get(family, PLAIN))  # the library adds to it
    if family in ROPES and family not in BY_LAYER_TYPE:
        settings["rope_parameters"] = {"rope_theta": 1e4, "original_max_position_embeddings": ORIGINAL, **ROPES[family]}
    windows = {"sliding_window": WINDOW, "window_size": WINDOW, "max_window_layers": 1}
    settings |= {name: value for name, value in windows.items() if settings.get(name) is not None}
    settings |= {"word_embed_proj_dim": None} if "word_embed_proj_dim" in settings else {}
    settings |= {"original_max_position_embeddings": ORIGINAL} if family == "phi3" else {}
    return model._replace(settings=settings, dtype="bfloat16")


def text(model: Drawn, length: int) -> dict[str, np.ndarray]:
    rng, mask = np.random.default_rng(length), np.ones((2, length), bool)
    mask[1, : length // 8] = False
    return {"ids": rng.integers(0, model.settings["vocab_size"], mask.shape), "mask": mask}


def rmse(error: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(error))))


@pytest.mark.parametrize(
    ("family", "dtype", "names"),
    [conformance("gemma2", "float64", ("torch",))]
    + [conformance((family, "float64", FOUR)) if family in FIRST else conformance((family, "float64", FOUR[:2])) for family in KINDS]
    + [conformance(family, "float32", FOUR) for family in KINDS]
    + [conformance(family, "bfloat16", FOUR) for family in DENSE],
    ids=str,
)
def test_a_long_text_gives_the_librarys_numbers(tmp_path: Path, family: str, dtype: str, names: tuple[str, ...]) -> None:
    """Logits and hidden states, in float64 also attention maps; in narrower dtypes within the judge's tolerance of the library's
    float64 results, like the library itself in that dtype, and no further away than a multiple of the library's own error.
    """
    model = lengthy(family)
    folder, given = saved(model, tmp_path / "a"), text(model, LENGTH)
    checkpoint = checkpoints.load(folder)
    assert "window" not in entries_by_field(family) or checkpoint.config.window == WINDOW
    with all_in_float64():
        wanted = theirs(loaded(folder, model.kind), given)
    if dtype == "float64":
        for name in names:
            assert_close(ours(checkpoint, model.kind, given, name), wanted, given["mask"])
        return

    def shown(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {part: real(part, found[part], given["mask"]) for part in ("hidden", "output")}

    def answer(case: Case) -> dict[str, np.ndarray]:
        return shown(wanted if case.dtype == "float64" else ours(checkpoint, model.kind, given, dtype=case.dtype))

    expected = tolerance.expect(next(cases(checkpoint, model.kind, given)).at(dtype), answer)
    library = shown(theirs(loaded_in(folder, model.kind, dtype), given))
    for part, allowed in expected.items():
        assert not allowed.incomparable, part
        assert compare(allowed, library[part].astype(numpy_dtype(dtype))).excess <= 1, part
    for name in names:
        found = shown(ours(checkpoint, model.kind, given, name, dtype))
        for part, allowed in expected.items():
            assert compare(allowed, found[part]).excess <= 1, (name, part)
            errors = [rmse(array.astype(np.float64) - allowed.reference) for array in (found[part], library[part])]
            assert errors[0] <= MULTIPLE * errors[1], (name, part, errors)


@contextlib.contextmanager
def products_rounded() -> Iterator[None]:
    """Sums TensorFlow's products in float32 and rounds them to the operands' dtype, on every processor."""
    tf = pytest.importorskip("tensorflow")
    product = tf.matmul

    def rounded(a: Any, b: Any, **options: Any) -> Any:
        return tf.cast(product(tf.cast(a, tf.float32), tf.cast(b, tf.float32), **options), a.dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf, "matmul", rounded)
        yield


@pytest.mark.parametrize(
    ("family", "name"),
    [("gemma2", "numpy")]
    + [conformance((family, name)) for family in FIRST for name in FOUR if (family, name) != ("gemma2", "numpy")]
    + [conformance((family, "numpy")) for family in DENSE if family not in FIRST and FAMILIES[family].fixed["norm"] == "rms"],
)
def test_a_decoder_rounds_where_the_library_does(tmp_path: Path, family: str, name: str) -> None:
    """In bfloat16, hidden states match the library's nearly bit for bit, except rotation, attention logits and biases, whose sum a kernel
    rounds; a norm that rounds elsewhere, or another embedding scale, has errors like any other.

    JAX runs operation by operation, since XLA omits roundings within fused programs. TensorFlow's products are those of a
    processor with AVX-512; other processors truncate them.
    """
    model, folder = lengthy(family), tmp_path / "a"
    library = made(model)
    for part, parameter in library.named_parameters():
        if part.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    library.save_pretrained(folder)
    checkpoint, given = checkpoints.load(folder), text(model, 60)
    with all_in_float64():
        exact = theirs(loaded(folder, model.kind), given)
    wanted = theirs(rounding_once(folder, model.kind), given)

    def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray] = wanted) -> float:
        return rmse(real("hidden", one["hidden"].astype(np.float64) - other["hidden"], given["mask"]))

    def found(**fields: Any) -> dict[str, np.ndarray]:
        config = checkpoint.config.replace(**fields)
        return ours(dataclasses.replace(checkpoint, config=config), model.kind, given, name, "bfloat16")

    ways = {"jax": lambda: pytest.importorskip("jax").disable_jit(), "tf": products_rounded}
    with ways.get(name, contextlib.nullcontext)():
        own = found()
        np.testing.assert_array_equal(own["hidden"][0].astype(np.float64), wanted["hidden"][0])
        assert apart(own) <= 0.5 * apart(exact)
        for choice in ("norm_cast_before_scale", *(["round_embedding_scale"] if family in GEMMAS else [])):
            if name == "numpy":
                assert apart(found(**{choice: not getattr(checkpoint.config, choice)})) >= apart(exact), choice
