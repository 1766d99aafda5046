"""The parts of modern decoders in the PyTorch port, together and in any mixture, against the reference and torch's own modules."""

import functools
from typing import Any

import flat
import numpy as np
import pytest
import torch
from kinds import conformance, every
from strategies import draw_parameters
from torch._dynamo.testing import CompileCounter
from torch_models import close

from impl_torch import cache, weights
from impl_torch.decoding import Searcher
from impl_torch.programs import static_cache, unpadding
from impl_torch.programs.compiled import compiled
from impl_torch.programs.fused import FusedFeedForward, fused
from impl_torch.projection import initialise
from impl_torch.transformer import Transformer
from impl_torch.values import Text
from reference_numpy import TransformerConfig, layout, parameters, preset
from reference_numpy import cache as steps
from reference_numpy.config import ACTIVATIONS, NORM_PLACEMENTS, NORMS, PARALLEL, QUERY_KEY_NORMS, ROTARY_LAYOUTS
from reference_numpy.parameters import flatten, nest
from reference_numpy.rotary_scaling import RotaryScaling

SIZES: dict[str, Any] = {
    "source_vocabulary": 23, "target_vocabulary": 23, "model_width": 12, "heads": 6, "key_value_heads": 2, "key_size": 8, "value_size": 6,
    "feed_forward_width": 17, "decoder_layers": 3, "encoder_layers": 0, "padding_id": None, "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
}  # fmt: skip
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0, "original_length": 4},
    "llama3": {"factor": 8.0, "original_length": 64, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0},
    "yarn": {"factor": 4.0, "original_length": 40, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "attention_factor": 1.2},
    "longrope": {
        "original_length": 4, "short_factors": (1.0, 1.2, 1.3, 1.5), "long_factors": (1.0, 2.0, 3.0, 4.0), "attention_factor": 1.2,
    },
}  # fmt: skip
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": ("gemma2_2b", {"window": 3}),
    "odd": ("gemma2_2b", {"encoder_layers": 2, "norm": "layer", "norm_offset": True, "window": 2, "query_key_norm": "width",
                          "padding_id": 0, "output_bias": True, "feed_forward_bias": True, "logit_scale": 0.3, "share_embeddings": True}),
    "llama": ("llama2_7b", {"rotary_scaling": RotaryScaling(kind="linear", factor=4.0), "padding_id": 0}),
    "gemma3": ("gemma3_1b", {"window": 3, "layer_pattern": ("local", "global")}),
    "mistral": ("mistral_7b", {"window": 4}),
    "interleaved": ("llama2_7b", {"rotary_layout": "interleaved", "rotary_fraction": 0.5, "query_key_value_bias": True,
                                  "rotary_pattern": (True, False)}),
    "parallel": ("llama2_7b", {"norm_placement": "parallel", "norm": "layer", "norm_offset": True, "rotary_fraction": 0.5}),
    "parallel_shared": ("llama2_7b", {"norm_placement": "parallel_shared", "gated_feed_forward": False, "output_bias": True}),
    **{kind: ("llama2_7b", {"rotary_scaling": RotaryScaling(kind=kind, **SCALINGS[kind])}) for kind in (*SCALINGS,)[1:]},
    "encoder": ("tiny", {"norm": "rms", "norm_cast_before_scale": True, "encoder_layers": 1, "positions": "rotary", "window": 3,
                         "layer_pattern": ("global", "local"), "position_start": "row", "gated_feed_forward": True, "padding_id": 0}),
}  # fmt: skip


def config_of(name: str) -> TransformerConfig:
    base, changes = VARIANTS[name]
    return preset(base, **(SIZES | changes))


def mixture(seed: int) -> TransformerConfig:
    """Returns a config with any mixture of the new fields, also those no family has."""
    rng = np.random.default_rng(seed)

    def one(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    flags = ("embedding_norm", "gated_feed_forward", "norm_offset", "norm_one_plus_scale", "norm_cast_before_scale", "final_norm",
             "scale_embedding", "round_embedding_scale", "tie_logits", "query_key_value_bias", "attention_output_bias", "feed_forward_bias",
             "output_bias", "query_key_norm_after_rotation")  # fmt: skip
    scalings = [RotaryScaling(kind=kind, **SCALINGS[kind]) for kind in SCALINGS] + [RotaryScaling()]
    encoders = one(0, 2)
    placements = [placement for placement in NORM_PLACEMENTS if not encoders or placement not in PARALLEL]
    return preset(
        "tiny",
        **SIZES
        | {name: one(True, False) for name in flags}
        | {"encoder_layers": encoders, "decoder_layers": 2, "positions": one("none", "sinusoidal", "rotary", "rotary", "rotary")}
        | {"rotary_layout": one(*ROTARY_LAYOUTS), "rotary_scaling": one(*scalings), "local_rotary_scaling": one(*scalings)}
        | {"rotary_pattern": one((True,), (False, True)), "layer_pattern": one(("global",), ("local",), ("local", "global"))}
        | {"window": one(1, 2, 3, 5), "activation": one(*ACTIVATIONS), "norm": one(*NORMS), "norm_placement": one(*placements)}
        | {"query_key_norm": one(*QUERY_KEY_NORMS), "score_scale": one(None, 0.2), "score_cap": one(None, 3.0), "padding_id": one(None, 0)}
        | {"logit_scale": one(1.0, 0.3), "logit_cap": one(None, 4.0), "position_start": one("first_token", "row"), "epsilon": 1e-5}
        | {"query_key_value_clip": one(None, 0.5), "norm_scale": one(True, True, False)}
        | {"query_key_norm_offset": one(True, False)},
    )


CONFIGS = [*map(config_of, VARIANTS), *map(mixture, range(24))]
NAMED = pytest.mark.parametrize("config", every(12, [pytest.param(config, id=name) for name, config in zip(
    [*VARIANTS, *map(str, range(24))], CONFIGS, strict=True)]))  # fmt: skip


def model_of(config: TransformerConfig, values: dict[str, np.ndarray]) -> Any:
    dtype = str(next(iter(values.values())).dtype)
    model = Transformer(config).to(getattr(torch, dtype)).eval()
    weights.load(model, values, config)
    return model


def tensor(array: Any) -> Any:
    return None if array is None else torch.from_numpy(np.ascontiguousarray(array))


class Batch:
    """A source and a target of a config, with rows padded on the left and on the right."""

    def __init__(self, config: TransformerConfig) -> None:
        rng = np.random.default_rng(1)
        self.source = rng.integers(1, 23, (2, 6)) if config.encoder_layers else None
        self.target, self.target_mask = rng.integers(1, 23, (2, 9)), np.ones((2, 9), bool)
        self.source_mask = None if self.source is None else np.ones((2, 6), bool)
        self.target_mask[0, :3] = self.target_mask[1, -2:] = False
        if self.source_mask is not None:
            self.source_mask[0, -2:] = False
        self.given = self.source, self.target, self.source_mask, self.target_mask

    @property
    def texts(self) -> Any:
        """Returns the inputs of a model."""
        source = None if self.source is None else Text(tensor(self.source), tensor(self.source_mask))
        return source, Text(tensor(self.target), tensor(self.target_mask))


def same_model(config: TransformerConfig, values: dict[str, np.ndarray]) -> None:
    """Compares a model, its gradients and its states with the reference's."""
    batch = Batch(config)
    model = model_of(config, values)
    logits = model(*batch.texts)
    np.testing.assert_allclose(logits.detach(), flat.transformer(nest(values), config, *batch.given), rtol=0, atol=1e-12)
    cotangent = np.random.default_rng(2).standard_normal(logits.shape)
    logits.backward(tensor(cotangent))
    expected = flatten(flat.transformer_vjp(nest(values), config, *batch.given, cotangent=cotangent)["parameters"])
    native, found = layout.to_native(expected, weights.TABLE, config), weights.tensors(model, config)
    for name, letters in parameters.axes(config).items():
        gradient = torch.zeros_like(found[name]) if found[name].grad is None else found[name].grad
        np.testing.assert_allclose(gradient, native[layout.native(name, letters, weights.TABLE)[0]], rtol=1e-9, atol=1e-9)
    states = flatten(flat.states(nest(values), config, *batch.given))
    for name, state in flatten(model.states(*batch.texts)).items():
        np.testing.assert_allclose(state.detach(), states[name], rtol=0, atol=1e-12)


def same_steps(config: TransformerConfig, values: dict[str, np.ndarray], snapshot: bool) -> None:
    """Compares steps with the reference's, beyond a layer's window, whose places are overwritten, and with left padding."""
    batch = Batch(config)
    memory = None if batch.source is None else flat.encode(nest(values), config, batch.source, batch.source_mask)
    model = model_of(config, values)
    model = fused(model) if snapshot else model
    for splits in ([9], [1] * 9, [3, 1, 1, 1, 3], [4, 2, 3], [5, 1, 1, 2], [8, 1]):
        given = memory, splits, batch.source_mask, batch.target_mask
        expected = steps.decode_in_steps(nest(values), config, batch.target, *given)
        for one in (cache, static_cache):
            found = one.decode_in_steps(model, tensor(batch.target), tensor(memory), splits, *map(tensor, given[2:]))
            np.testing.assert_allclose(found.detach(), expected, rtol=0, atol=1e-12)


@NAMED
def test_a_model_its_gradients_and_its_states_are_the_reference_s(config: TransformerConfig) -> None:
    same_model(config, draw_parameters(config, 0))


@NAMED
@pytest.mark.parametrize("snapshot", [False, conformance(True)])
def test_steps_are_the_reference_s_however_a_target_is_split(snapshot: bool, config: TransformerConfig) -> None:
    same_steps(config, draw_parameters(config, 0), snapshot)


SEARCHES: dict[str, dict[str, Any]] = {"greedy_search": {}, "sample": {}, "beam_search": {"beam_size": 3, "n_best": 2, "alpha": 0.6}}


def searched(config: TransformerConfig, searcher: Searcher, values: dict[str, np.ndarray], search: str, prompt: int = 5) -> None:
    """Compares a search with the reference's."""
    batch, options = Batch(config), {"start_id": 1, "end_id": 3, "max_new_tokens": 9, **SEARCHES[search]}
    prefix, mask = batch.target[:, :prompt].copy(), batch.target_mask[:, :prompt]
    prefix[~mask] = 0
    draws = [np.random.default_rng(3).random((2, 9))] if search == "sample" else []
    given = {"prefix": prefix, "source_mask_bs": batch.source_mask, "prefix_mask_bp": mask}
    expected = getattr(flat, search)(nest(values), config, batch.source, options, *draws, **given)
    of_torch = {name: tensor(array) for name, array in given.items()}
    found = getattr(searcher, search)(tensor(batch.source), options, *map(tensor, draws), **of_torch)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-12)


@NAMED
@pytest.mark.parametrize("search", every(3, SEARCHES))
def test_a_search_is_the_reference_s(search: str, config: TransformerConfig) -> None:
    values = draw_parameters(config, 0)
    searched(config, Searcher(model_of(config, values)), values, search)


@pytest.mark.conformance
@pytest.mark.parametrize("name", ["gemma3", "encoder", "dynamic"])
def test_a_program_of_a_step_serves_windows_and_rotations(name: str) -> None:
    config = config_of(name)
    values = draw_parameters(config, 0)
    searcher = Searcher(model_of(config, values), compiled=True)
    for search in ("greedy_search", "beam_search"):
        searched(config, searcher, values, search)
    searched(config, searcher, values, "greedy_search", prompt=4)


@pytest.mark.parametrize("window", [2, 5])
def test_a_layer_with_a_window_keeps_no_more_tokens_than_that(window: int) -> None:
    config = config_of("gemma3").replace(window=window)
    kept = static_cache.start_cache(model_of(config, draw_parameters(config, 0)), None, batch=2, length=7)
    assert [layer["self_attention"][0].shape[1] for layer in kept["layers"]] == [window, 7, window]
    short = static_cache.start_cache(model_of(config, draw_parameters(config, 0)), None, batch=2, length=window)
    assert {layer["self_attention"][0].shape[1] for layer in short["layers"]} == {window}


@pytest.mark.parametrize("config", [pytest.param(config_of(name), id=name) for name in ("llama", "encoder", "odd")])
def test_rotary_positions_and_windows_are_those_of_rows_when_padding_is_left_out(config: TransformerConfig) -> None:
    model, batch = model_of(config, draw_parameters(config, 0)), Batch(config)
    batch.target[0, -4:] = 0
    if batch.source is not None:
        batch.source[1, -3:] = 0
    given = tensor(batch.source), tensor(batch.target)
    sides = unpadding.find(model.training_loss, 0, source=given[0], target=given[1])
    assert sides is not None
    assert sides.target.number < batch.target[:, 1:].size
    gradients = []
    for run in (model.training_loss, unpadding.unpadded(model.training_loss, 0)):
        model.zero_grad()
        loss = run(*given)
        loss.backward()
        gradients.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for one, other in zip(*gradients, strict=True):
        close(one, other)
    real = functools.partial(unpadding.real_logits, model)
    close(unpadding.unpadded(real, 0)(*given), real(*given))


def test_a_scale_to_which_1_is_added_begins_at_zero() -> None:
    config = config_of("gemma3")
    with torch.device("meta"):
        model = Transformer(config)
    model.to_empty(device="cpu").apply(initialise)
    assert not any(value.any() for name, value in weights.export(model, config).items() if name.endswith("scale"))


def test_gate_and_hidden_layer_are_one_product_in_int8_too() -> None:
    """`test_int8` compares the numbers."""
    config = config_of("llama")
    model = model_of(config, draw_parameters(config, 0, dtype=np.float32))
    for dtype in (None, "int8"):
        assert type(fused(model, dtype).decoder.layers[0].feed_forward) is FusedFeedForward


class Plain(torch.nn.Module):
    """A layer of another class, which takes no rotation."""

    def forward(self, x_btd: Any, memory_bsd: Any, self_mask_bhts: Any, cross_mask_bhts: Any) -> Any:
        return x_btd


def test_a_layer_of_another_class_need_not_take_a_rotation_where_none_rotates() -> None:
    config = config_of("interleaved")
    model = model_of(config, draw_parameters(config, 0))
    tokens, layer = torch.arange(8).reshape(2, 4), model.decoder.layers[1]
    model.decoder.layers[1] = Plain()
    assert model(None, tokens).shape == (2, 4, 23)
    model.decoder.layers[1], model.decoder.layers[0] = layer, Plain()
    with pytest.raises(TypeError, match="rotation"):
        model(None, tokens)


@pytest.mark.parametrize("size", [9, conformance(3)])
def test_a_window_that_hides_nothing_leaves_the_kernel_its_triangle(size: int) -> None:
    """A mask would disable the fused kernel's own causal mask, which skips later keys."""
    config = config_of("mistral").replace(window=9)
    model, seen = model_of(config, draw_parameters(config, 0)), []

    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.nn.functional.scaled_dot_product_attention:
                seen.append((kwargs["is_causal"], kwargs["attn_mask"] is None))
            return function(*args, **(kwargs or {}))

    with Seen():
        model(None, torch.arange(2 * size).reshape(2, size))
        model(None, torch.arange(20).reshape(2, 10))
    assert seen == [(True, True)] * 3 + [(False, False)] * 3


def ids(rows: int, length: int) -> Any:
    return torch.arange(rows * length).reshape(rows, length) % 22 + 1


@pytest.mark.conformance
@pytest.mark.parametrize("name", ["gemma2", "gemma3", "longrope", "dynamic", "yarn", "encoder"])
def test_a_compiled_model_is_the_eager_one_and_one_graph_serves_every_length(name: str) -> None:
    torch.compiler.reset()
    config = config_of(name).replace(decoder_layers=2)
    model, traced = model_of(config, draw_parameters(config, 0)), CompileCounter()
    runs = torch.compile(model, backend=traced, fullgraph=True, dynamic=True), compiled(model)
    for rows, length in ((4, 9), (4, 3), (2, 6)):
        given = ids(rows, 3) if config.encoder_layers else None, ids(rows, length)
        for run in runs:
            torch.testing.assert_close(run(*given), model(*given), rtol=1e-12, atol=1e-12)
    assert traced.frame_count == 1
