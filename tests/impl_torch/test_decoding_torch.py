"""Specifics of decoding in the PyTorch port: packed kernels, replaced parts, hooks, autocast."""

from typing import Any

import numpy as np
import pytest
import torch
from backends import Backend, random_parameters
from kinds import every
from test_decoding import ALONE, END, PADDING, PROMPTS, START, VOCABULARY, sources

from impl_torch import cache
from impl_torch.decoding import Searcher
from impl_torch.kernels import projection
from impl_torch.kernels.projection import FusedProjection
from impl_torch.programs import program, static_cache
from impl_torch.programs.fused import fused, pack
from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy import decoding as reference

OPTIONS: dict[str, Any] = {"start_id": START, "end_id": END, "max_new_tokens": 6}
BACKEND = Backend("torch")


def model_of(config: TransformerConfig, dtype: str = "float64") -> Any:
    return BACKEND.loaded(config, random_parameters(config, dtype))


def config_of(**changes: Any) -> TransformerConfig:
    sizes = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY, "model_width": 12, "feed_forward_width": 8}
    return preset("tiny", **(sizes | {"encoder_layers": 1} | changes))


BIASES = {"attention_bias": True, "output_bias": True, "scale_embedding": False}


@pytest.fixture
def small_kernels_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "PACKED_FROM", 0)


@pytest.mark.usefixtures("small_kernels_are_packed")
@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("bfloat16", 0.05)])
@pytest.mark.parametrize("rows", [3, 9])
def test_packed_kernels_read_what_plain_ones_do(rows: int, dtype: str, close: float) -> None:
    if not projection.library(torch.zeros(1, dtype=getattr(torch, dtype))):
        pytest.skip(f"this processor has no packed kernels of {dtype}")
    config = config_of(**BIASES)
    model = fused(model_of(config, "float32"), getattr(torch, dtype))
    kernel = model.decoder.layers[0].self_attention.query_key_value
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((rows, 1, config.model_width))).to(getattr(torch, dtype))
    plain = kernel(x)
    pack(model, rows)
    assert kernel.packed is not None
    torch.testing.assert_close(kernel(x), plain, rtol=close, atol=close)
    torch.testing.assert_close(kernel(x[1:]), plain[1:], rtol=close, atol=close)


class LowRank(torch.nn.Module):
    """A user's replacement of a linear layer; it has neither `weight` nor `in_features`."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = torch.nn.Linear(base.in_features, 2, bias=False), torch.nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


class Doubled(torch.nn.Module):
    def forward(self, x: Any, keep: Any = None) -> Any:
        return 2 * x


def _hook(module: Any) -> None:
    module.register_forward_hook(lambda module, given, result: 2 * result)


def _own_forward(module: Any) -> None:
    forward = module.forward
    module.forward = lambda x: 2 * forward(x)


def _replaced(model: Any, path: str, change: str) -> None:
    parent, _, name = path.rpartition(".")
    holder, module = model.get_submodule(parent), model.get_submodule(path)
    if change == "low_rank":
        setattr(holder, name, LowRank(module))
    elif change == "biased":
        setattr(holder, name, torch.nn.Linear(module.in_features, module.out_features))
    elif change == "other":
        setattr(holder, name, Doubled())
    elif change == "parametrised":
        torch.nn.utils.parametrize.register_parametrization(module, "weight", Doubled())
    else:
        {"hook": _hook, "own_forward": _own_forward}[change](module)


ATTENTION, FEED_FORWARD = "decoder.layers.0.self_attention", "decoder.layers.1.feed_forward"


@pytest.mark.parametrize(
    ("path", "change"),
    every(4, [
        (f"{ATTENTION}.query", "low_rank"),
        (f"{ATTENTION}.key", "biased"),
        (f"{ATTENTION}.value", "parametrised"),
        (f"{ATTENTION}.output", "hook"),
        ("decoder.layers.1.cross_attention.value", "low_rank"),
        (f"{FEED_FORWARD}.hidden", "low_rank"),
        (f"{FEED_FORWARD}.output", "own_forward"),
        (FEED_FORWARD, "other"),
        ("logits", "low_rank"),
        ("logits", "hook"),
    ]),
)  # fmt: skip
def test_a_search_uses_what_stands_in_for_a_part(path: str, change: str) -> None:
    config = config_of()
    model, source = model_of(config), torch.from_numpy(sources(5))
    _replaced(model, path, change)
    model.double().eval()
    found = Searcher(model).greedy_search(source, OPTIONS | {"min_new_tokens": 5})
    token_bn = found["token_bn"]
    with torch.no_grad():
        logits_btv = model(source, torch.cat([torch.full((3, 1), START), token_bn[:, :-1]], dim=1))
    logits_btv[..., [PADDING, START]] = -torch.inf
    log_p_bn = logits_btv.log_softmax(-1).gather(2, token_bn[..., None])[..., 0]
    torch.testing.assert_close(found["log_p_bn"], log_p_bn, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("path", ["", "decoder", "decoder.layers.1", "decoder.layers.0.cross_attention"])
def test_what_steps_do_not_call_may_not_be_changed(path: str) -> None:
    config = config_of()
    source, options = torch.from_numpy(sources(5)), OPTIONS
    for change in (_hook, _own_forward):
        model = model_of(config)
        change(model.get_submodule(path))
        with pytest.raises(ValueError, match=f"{path or 'model'}.*hooks"):
            Searcher(model).greedy_search(source, options)
    model = model_of(config)
    model.decoder.layers[0].cross_attention = LowRank(model.decoder.layers[0].cross_attention.query)
    with pytest.raises(ValueError, match=r"decoder\.layers\.0\.cross_attention.*MultiHeadAttention.*LowRank"):
        Searcher(model).greedy_search(source, options)


def test_searches_under_autocast() -> None:
    config = config_of(**BIASES)
    source = torch.from_numpy(sources(5))
    searcher = Searcher(model_of(config, "float32"))
    plain = searcher.greedy_search(source, OPTIONS)
    with torch.autocast("cpu", torch.bfloat16):
        found = searcher.greedy_search(source, OPTIONS)
    assert found["log_p_bn"].dtype == torch.float32
    torch.testing.assert_close(found["log_p_bn"][:, 0], plain["log_p_bn"][:, 0], rtol=0, atol=0.1)


@pytest.mark.conformance
@pytest.mark.parametrize("library", ["the processor's", "onednn"])
def test_a_program_is_compiled_once_for_all_weights_and_lengths_and_has_large_kernels_packed(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library == "onednn":
        monkeypatch.setattr(projection, "library", lambda weight: library)
    config, source = config_of(**BIASES).replace(model_width=64, feed_forward_width=8192), sources(5, rows=4)
    trees = [random_parameters(config, seed=seed) for seed in (3, 4)]
    models = [BACKEND.loaded(config, {name: array.astype(np.float32) for name, array in arrays.items()}) for arrays in trees]
    pack(one := fused(models[0]), 4)
    if (large := one.decoder.layers[0].feed_forward.hidden).packed is None:
        pytest.skip("this CPU's library packs no kernels")
    searchers, eager = ([Searcher(model, compiled=compiled) for model in models] for compiled in (True, False))
    for length, count in ((5, 6), (4, 9)):
        for arrays, searcher, plain in zip(trees, searchers, eager, strict=True):
            options = OPTIONS | {"max_new_tokens": count, "min_new_tokens": count - 1}
            expected = reference.greedy_search(parameters.nest(arrays), config, source[:, :length], options)
            found, near = (each.greedy_search(torch.from_numpy(source[:, :length]), options) for each in (searcher, plain))
            np.testing.assert_array_equal(found["token_bn"].numpy(), expected["token_bn"])
            error, noise = (np.abs(one["log_p_bn"].numpy() - expected["log_p_bn"]).max() for one in (found, near))
            assert error <= 4 * noise + np.spacing(np.float32(np.abs(expected["log_p_bn"]).max()))
            monkeypatch.setattr(program, "compile_to", _not_again)
    if large._library == "mkl":
        few, many = (_calls("mkl::_mkl_linear", searchers[0], torch.from_numpy(source), count) for count in (4, 7))
        assert many - few == 3 * 2 * config.decoder_layers  # the two kernels of a feed-forward are large


def _not_again(*_: Any) -> None:
    raise AssertionError("this program has been compiled")


def _calls(name: str, searcher: Searcher, source: Any, count: int) -> int:
    with torch.profiler.profile() as seen:
        searcher.greedy_search(source, OPTIONS | {"max_new_tokens": count, "min_new_tokens": count - 1})
    return sum(event.count for event in seen.key_averages() if event.key == name)


def test_a_snapshot_encodes_as_the_model_does_with_gradients_too() -> None:
    model = BACKEND.loaded(ENCODER, parameters.initialise(ENCODER, 3, np.float32))
    snapshot = fused(model)
    assert isinstance(snapshot.encoder.layers[0].self_attention.query, FusedProjection)
    source = torch.from_numpy(sources(5))
    torch.testing.assert_close(snapshot.encode(source), model.encode(source), rtol=1e-5, atol=1e-5)
    gradients = []
    for one in (model, snapshot):
        soft = torch.nn.functional.one_hot(source, VOCABULARY).float().requires_grad_()
        one.encode(soft)[..., 0].sum().backward()  # the sum of squares of a norm's output hardly changes
        gradients.append(soft.grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_steps_need_a_model_in_evaluation() -> None:
    with pytest.raises(ValueError, match="training mode"):
        cache.start_cache(model_of(config_of()).train(), torch.zeros(3, 5, 12))


def test_copies_of_a_row_change_places_without_a_copy_of_keys() -> None:
    config = config_of()
    model = fused(model_of(config))
    memory, row = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 5, config.model_width))), [1, 1, 0, 5, 3, 4]
    first, then = np.random.default_rng(1).integers(3, VOCABULARY, (2, 6, 2))
    with torch.inference_mode():
        _, read = static_cache.decode_step(model, torch.from_numpy(first), static_cache.start_cache(model, memory, length=4, copies=3))
        moved = static_cache.reorder(read, torch.tensor(row))
        logits, _ = static_cache.decode_step(model, torch.from_numpy(then), moved)
        whole = torch.from_numpy(np.concatenate([first[row], then], axis=1))
        alone = cache.decode_in_steps(model, whole, memory.repeat_interleave(3, dim=0), (4,))
    assert moved["layers"] is read["layers"]
    torch.testing.assert_close(logits, alone[:, 2:], rtol=1e-10, atol=1e-11)


ENCODER = preset(
    "bert_base", source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY, model_width=12, heads=3, key_value_heads=3, key_size=4,
    value_size=4, feed_forward_width=8, encoder_layers=2, max_positions=9, dropout_rate=0.0, attention_dropout_rate=0.0,
)  # fmt: skip


@pytest.mark.usefixtures("small_kernels_are_packed")
def test_the_steps_of_a_decoder_only_model_have_the_fused_and_packed_kernels() -> None:
    searcher = Searcher(model_of(ALONE, "float32"))
    layer, model = searcher.model.decoder.layers[0], searcher.model
    kernels = (layer.self_attention.query_key_value, layer.self_attention.output, layer.feed_forward.hidden, model.logits)
    assert all(type(kernel) is FusedProjection for kernel in kernels)
    layer.feed_forward.output.pack(4)
    if layer.feed_forward.output.packed is None:
        pytest.skip("this CPU's library packs no kernels")
    given = {name: torch.from_numpy(array) for name, array in PROMPTS.items()}
    searcher.greedy_search(None, OPTIONS | {"start_id": None}, **given)
    assert all(kernel.packed is not None for kernel in kernels)


def test_a_product_too_small_for_a_call_of_one_dnn_stays_plain() -> None:
    kernel = FusedProjection(torch.nn.Linear(64, 1024))
    if kernel._library != "onednn":
        pytest.skip("this CPU's float32 products are not oneDNN's")
    for rows, packed in ((7, False), (8, True)):
        kernel.pack(rows)
        x = torch.ones(rows, 1, 64)
        with torch.profiler.profile() as seen, torch.inference_mode():
            kernel(x)
        assert any(event.key == "mkldnn::_linear_pointwise" for event in seen.key_averages()) == packed
