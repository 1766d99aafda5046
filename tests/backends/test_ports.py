"""Properties of every port that forward cases do not show: gradients, bit-exact empty rows, dropout in training."""

import contextlib
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from backends import PORTS, Backend
from conforming import conform
from expectations import all_by_id
from kinds import conformance, every

from reference_numpy import parameters, preset, sites
from rosettaformer.judge.case import DTYPES, Case, numpy_dtype
from rosettaformer.judge.expectation.components import forward_of, is_layout
from rosettaformer.judge.ports.port import NotCovered

CONFIG = preset(
    "tiny", source_vocabulary=23, target_vocabulary=23, model_width=12, heads=6, key_value_heads=2, key_size=7, value_size=5,
    feed_forward_width=19, encoder_layers=1, decoder_layers=1, dropout_rate=0.4, attention_dropout_rate=0.3, hidden_dropout_rate=0.2,
)  # fmt: skip
RATES = ("dropout_rate", "attention_dropout_rate", "hidden_dropout_rate")
GRADIENTS = [case for case in all_by_id().values() if forward_of(case.component) and not is_layout(case.component)]
FIRST = [*{case.component: case for case in reversed(GRADIENTS) if case.core}.values()]  # one of each component


@pytest.mark.parametrize(
    ("port", "whole"),
    [
        *((port, False) for port in ("torch", "tf")),
        *(pytest.param(port, True, marks=pytest.mark.conformance) for port in PORTS),
    ],
)
def test_gradients_conform(port: str, whole: bool) -> None:
    conform(GRADIENTS if whole else FIRST, port, ["float32"], here=not whole)


@pytest.mark.parametrize("dtype", every(2, DTYPES))
@pytest.mark.parametrize("hidden_by", ["mask", "bias", "both"])
@pytest.mark.parametrize("return_weights", [False, conformance(True)])
def test_a_row_without_keys_is_zero_and_passes_zero_gradient(backend: Backend, dtype: str, hidden_by: str, return_weights: bool) -> None:
    rng, kind = np.random.default_rng(0), numpy_dtype(dtype)
    query, key, value = (rng.standard_normal(shape).astype(kind) for shape in ((2, 3, 6, 8), (2, 7, 2, 8), (2, 7, 2, 5)))
    mask, bias = np.ones((2, 1, 3, 7), bool), rng.standard_normal((2, 6, 3, 7))
    mask[0, :, 1] = False
    bias = {"mask": 0 * bias, "bias": np.where(mask, bias, -np.inf), "both": bias}[hidden_by].astype(kind)
    mask = np.ones_like(mask) if hidden_by == "bias" else mask
    name = "scaled_dot_product_attention"
    case = Case("", name, CONFIG, {}, {})
    attend = backend.adapter.calls.around(backend.port.components[name](CONFIG, backend.dtype(dtype)), case, list)

    def attended(query: Any, key: Any, value: Any, bias: Any) -> Any:
        given = {"query_bthk": query, "key_bsgk": key, "value_bsge": value, "mask_bhts": backend.weights.from_numpy(mask)}
        found = attend(**given, bias_bhts=bias, return_weights=return_weights)
        return found[0] if return_weights else found

    with backend.wide():
        output, gradients = backend.gradients(attended, query, key, value, bias)
    dquery, _, _, dbias = gradients
    assert output.dtype == kind
    assert not output[0, 1].any()
    assert output[1].any()
    assert all(np.isfinite(gradient.astype(float)).all() for gradient in gradients)
    assert not dquery[0, 1].any()
    assert dquery[1].any()
    assert not dbias[0, :, 1].any()


@pytest.mark.parametrize("dtype", every(2, DTYPES))
def test_the_softmax_of_an_empty_row_is_zero_and_passes_zero_gradient(backend: Backend, dtype: str) -> None:
    logits = np.random.default_rng(0).standard_normal((2, 3)).astype(numpy_dtype(dtype))
    with backend.wide(), _nan_refused(backend):
        mask = backend.weights.from_numpy(np.array([[True, False, True], [False] * 3]))
        p, (gradient,) = backend.gradients(lambda x: backend.part("softmax").softmax(x, mask), logits)
    assert not p[1].any()
    assert not gradient[1].any()
    assert gradient[0, 0]


def _nan_refused(backend: Backend) -> Any:
    if backend.name == "torch":
        return backend.framework.autograd.set_detect_anomaly(True, check_nan=True)
    return backend.framework.debug_nans(True) if backend.name == "jax" else contextlib.nullcontext()


def called(backend: Backend, module: Any, *arrays: np.ndarray, training: bool, **more: Any) -> np.ndarray:
    given = [backend.weights.from_numpy(array) for array in arrays]
    if backend.name == "tf":
        return backend.weights.to_numpy(module(*given, training=training, **more))
    module.train() if training else module.eval()
    return backend.weights.to_numpy(module(*given, **more))


@pytest.mark.parametrize(("component", "rate"), every(2, product(("encoder", "decoder"), RATES)))
def test_every_site_drops_in_training_alone(backend: Backend, component: str, rate: str) -> None:
    config = CONFIG.replace(**dict.fromkeys(RATES, 0.0) | {rate: 0.5})
    rng, module = np.random.default_rng(0), backend.build(component, config)
    shapes = parameters.shapes(config, component)
    backend.weights.load(module, {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}, config, component)
    x = [rng.standard_normal((2, 5, 12)).astype(np.float32) for _ in range(1 + (component == "decoder"))]
    expected = called(backend, module, *x, training=False)
    first, second = (called(backend, module, *x, training=True) for _ in range(2))
    assert not np.allclose(first, expected)
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(called(backend, module, *x, training=False), expected)


@pytest.mark.parametrize("backend", ["torch", "tf", conformance("jax")], indirect=True)
def test_given_masks_are_applied_in_every_mode_and_other_sites_follow_the_mode(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    model = backend.loaded(CONFIG, parameters.initialise(CONFIG, 0, np.float32))
    ids = rng.integers(1, 23, (3, 7)), rng.integers(1, 23, (3, 5))
    keep = {name: backend.weights.from_numpy(mask) for name, mask in parameters.flatten(sites.draw(CONFIG, 3, 7, 5, rng)).items()}
    one = {name: mask for name, mask in keep.items() if "cross_attention.weights" in name}
    evaluated, trained = (called(backend, model, *ids, training=training, keep=parameters.nest(keep)) for training in (False, True))
    np.testing.assert_allclose(trained, evaluated, rtol=0, atol=1e-5)
    evaluated, trained = (called(backend, model, *ids, training=training, keep=parameters.nest(one)) for training in (False, True))
    plain = called(backend, model, *ids, training=False)
    assert not np.allclose(evaluated, plain)
    assert not np.allclose(trained, evaluated)


def test_a_model_has_the_parts_of_its_config_and_no_others(backend: Backend) -> None:
    """Logits have a part even if their kernel is a table; in torch, so does a table shared by both sides."""
    sizes = {"source_vocabulary": 13, "target_vocabulary": 13, "model_width": 6, "feed_forward_width": 7, "max_positions": 20}
    bert, gpt2 = preset("bert_base", **sizes, encoder_layers=1), preset("gpt2_small", **sizes, decoder_layers=1)
    heads = bert.replace(classes=3, segments=0, embedding_norm=False, masked_language_head=False)
    both = (CONFIG.replace(share_embeddings=False), *(() if backend.name == "torch" else (CONFIG,)))
    for config in (bert, heads, gpt2, *both):
        model, wanted = backend.build("transformer", config), {name.partition(".")[0] for name in parameters.axes(config)}
        if backend.name == "torch":
            parts = {name for name, _ in model.named_children()}
        elif backend.name == "tf":
            parts = {name for name, part in vars(model).items() if isinstance(part, backend.framework.keras.layers.Layer)}
        else:
            from flax import nnx

            parts = {path[0] for path, part in nnx.iter_graph(model) if len(path) == 1 and isinstance(part, nnx.Module)}
        assert parts == wanted | ({"logits"} if config.decoder_layers else set())
    assert not hasattr(backend.build("transformer", gpt2).decoder.layers[0], "cross_attention")


def test_what_takes_no_keep_masks_bias_or_skip_padding_does_not_cover_them(backend: Backend) -> None:
    """A function plays a user's module; other missing arguments raise an error."""
    x, one = np.ones((1, 1, 12)), np.ones((1, 1, 1, 1))
    layer = {"x_btd": x, "keep.feed_forward_dropout": x > 0, "cotangent": x}
    attended = {"query_btd": x, "memory_bsd": x}
    model = {"source": np.ones((1, 2), int), "target": np.ones((1, 1), int)}
    skipped = model | {"skip_padding": True}
    gradient = skipped | {"cotangent": one[0]}
    modules = {
        "encoder_layer": lambda config, dtype: lambda x_btd: x_btd,
        "multi_head_attention": lambda config, dtype: lambda query_btd, memory_bsd: query_btd,
        "transformer": lambda config, dtype: lambda source, target: source,
    }
    port = SimpleNamespace(components=modules)
    own = SimpleNamespace(components=modules, call={"transformer": {"source": "source", "target": "target"}})
    eager = SimpleNamespace(components=modules, modes=("eager",))
    mask = one[0, 0] > 0
    for module, component, inputs, kind, message in (
        (port, "encoder_layer", layer, NotCovered, "keep masks"),
        (port, "encoder_layer_vjp", layer, NotCovered, "keep masks"),
        (eager, "encoder_layer", layer, ValueError, "mode.*'compiled'"),
        (port, "multi_head_attention", attended | {"bias_bhts": one}, NotCovered, "bias_bhts"),
        (port, "multi_head_attention", attended | {"mask_bhts": one > 0}, TypeError, "mask_bhts"),
        (port, "transformer", skipped, NotCovered, "skip_padding"),
        (port, "transformer_vjp", gradient, NotCovered, "skip_padding"),
        (own, "transformer", skipped, NotCovered, "transformer.*skip_padding"),
        (own, "transformer_vjp", gradient, NotCovered, "transformer.*skip_padding"),
        (port, "transformer", model | {"target_mask_bt": mask}, TypeError, "target_mask_bt"),
    ):
        case = Case("one", component, CONFIG, inputs, mode="compiled" if module is eager else "")
        with pytest.raises(kind, match=message):
            type(backend.adapter)(module).run(case)
