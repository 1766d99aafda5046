"""The parts of modern decoders in the PyTorch port, together and in any mixture, against the reference and against torch's own modules."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kinds import conformance, every

from reference_numpy import TransformerConfig, decoding, layout, parameters, preset, transformer
from reference_numpy import cache as steps
from reference_numpy import states as recorded
from reference_numpy.config import ACTIVATIONS, NORM_PLACEMENTS, NORMS, QUERY_KEY_NORMS, ROTARY_LAYOUTS
from reference_numpy.parameters import flatten, nest
from reference_numpy.rotary_scaling import RotaryScaling

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounter  # noqa: E402
from torch_models import close  # noqa: E402

from impl_torch import cache, port, weights  # noqa: E402
from impl_torch.decoding import Searcher  # noqa: E402
from impl_torch.kernels.int8 import Int8Projection  # noqa: E402
from impl_torch.normalization import LayerNorm, RMSNorm, norm  # noqa: E402
from impl_torch.programs import unpadding  # noqa: E402
from impl_torch.programs.compiled import compiled  # noqa: E402
from impl_torch.programs.fused import FusedFeedForward, fused  # noqa: E402
from impl_torch.projection import initialise  # noqa: E402
from impl_torch.rotary import rotary_embedding, rotary_frequencies  # noqa: E402
from impl_torch.transformer import Transformer  # noqa: E402

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
    "olmo": ("llama2_7b", {"norm_placement": "after", "query_key_norm": "width", "norm_cast_before_scale": False}),
    "interleaved": ("llama2_7b", {"rotary_layout": "interleaved", "rotary_fraction": 0.5, "query_key_value_bias": True,
                                  "rotary_pattern": (True, False)}),
    **{kind: ("llama2_7b", {"rotary_scaling": RotaryScaling(kind=kind, **SCALINGS[kind])}) for kind in (*SCALINGS,)[1:]},
    "none": ("gpt2_small", {"positions": "none", "max_positions": 0}),
    "halves": ("tiny", {"sinusoid_layout": "halves", "encoder_layers": 1, "norm_placement": "sandwich"}),
    "encoder": ("tiny", {"norm": "rms", "norm_cast_before_scale": True, "encoder_layers": 1, "positions": "rotary", "window": 3,
                         "layer_pattern": ("global", "local"), "position_start": "row", "gated_feed_forward": True, "padding_id": 0}),
}  # fmt: skip


def config_of(name: str) -> TransformerConfig:
    base, changes = VARIANTS[name]
    return preset(base, **(SIZES | changes))


def mixture(seed: int) -> TransformerConfig:
    """A config of any mixture of the new fields, which no family need have."""
    rng = np.random.default_rng(seed)

    def one(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    flags = ("embedding_norm", "gated_feed_forward", "norm_offset", "norm_one_plus_scale", "norm_cast_before_scale", "final_norm",
             "scale_embedding", "round_embedding_scale", "tie_logits", "query_key_value_bias", "attention_output_bias", "feed_forward_bias",
             "output_bias")  # fmt: skip
    scalings = [RotaryScaling(kind=kind, **SCALINGS[kind]) for kind in SCALINGS] + [RotaryScaling()]
    return preset(
        "tiny",
        **SIZES
        | {name: one(True, False) for name in flags}
        | {"encoder_layers": one(0, 2), "decoder_layers": 2, "positions": one("none", "sinusoidal", "rotary", "rotary", "rotary")}
        | {"rotary_layout": one(*ROTARY_LAYOUTS), "rotary_scaling": one(*scalings), "local_rotary_scaling": one(*scalings)}
        | {"rotary_pattern": one((True,), (False, True)), "layer_pattern": one(("global",), ("local",), ("local", "global"))}
        | {"window": one(1, 2, 3, 5), "activation": one(*ACTIVATIONS), "norm": one(*NORMS), "norm_placement": one(*NORM_PLACEMENTS)}
        | {"query_key_norm": one(*QUERY_KEY_NORMS), "score_scale": one(None, 0.2), "score_cap": one(None, 3.0), "padding_id": one(None, 0)}
        | {"logit_scale": one(1.0, 0.3), "logit_cap": one(None, 4.0), "position_start": one("first_token", "row"), "epsilon": 1e-5},
    )


CONFIGS = [*map(config_of, VARIANTS), *map(mixture, range(24))]
NAMED = pytest.mark.parametrize("config", every(8, [pytest.param(config, id=name) for name, config in zip(
    [*VARIANTS, *map(str, range(24))], CONFIGS, strict=True)]))  # fmt: skip


def values_of(config: TransformerConfig, dtype: str = "float64") -> dict[str, np.ndarray]:
    rng, values = np.random.default_rng(0), {}
    for name, shape in parameters.shapes(config).items():
        value, kind = rng.standard_normal(shape), name.rpartition(".")[2]
        if kind == "scale":
            value = 0.4 * value + (not config.norm_one_plus_scale)
        else:
            value = value * (1.2 / np.sqrt(value.size / shape[-1]) if kind == "kernel" else 0.5)
        values[name] = value.astype(getattr(ml_dtypes, dtype, dtype))
    return values


def model_of(config: TransformerConfig, values: dict[str, np.ndarray]) -> Any:
    dtype = str(next(iter(values.values())).dtype)
    model = Transformer(config).to(getattr(torch, dtype)).eval()
    weights.load(model, values, config)
    return model


def tensor(array: Any) -> Any:
    return None if array is None else torch.from_numpy(np.ascontiguousarray(array))


class Batch:
    """A source and a target of a config, whose rows have padding on the left and on the right."""

    def __init__(self, config: TransformerConfig) -> None:
        rng = np.random.default_rng(1)
        self.source = rng.integers(1, 23, (2, 6)) if config.encoder_layers else None
        self.target, self.target_mask = rng.integers(1, 23, (2, 9)), np.ones((2, 9), bool)
        self.source_mask = None if self.source is None else np.ones((2, 6), bool)
        self.target_mask[0, :3] = self.target_mask[1, -2:] = False
        if self.source_mask is not None:
            self.source_mask[0, -2:] = False

    @property
    def given(self) -> tuple[Any, ...]:
        return self.source, self.target, self.source_mask, self.target_mask


@NAMED
def test_a_model_its_gradients_and_its_states_are_the_reference_s(config: TransformerConfig) -> None:
    values, batch = values_of(config), Batch(config)
    model, given = model_of(config, values), [*map(tensor, batch.given)]
    logits = model(*given)
    np.testing.assert_allclose(logits.detach(), transformer.transformer(nest(values), config, *batch.given), rtol=0, atol=1e-12)
    cotangent = np.random.default_rng(2).standard_normal(logits.shape)
    logits.backward(tensor(cotangent))
    expected = flatten(transformer.transformer_vjp(nest(values), config, *batch.given, cotangent=cotangent)["parameters"])
    native, found = layout.to_native(expected, weights.TABLE, config), weights.tensors(model, config)
    for name, letters in parameters.axes(config).items():
        np.testing.assert_allclose(found[name].grad, native[layout.native(name, letters, weights.TABLE)[0]], rtol=1e-9, atol=1e-9)
    states = flatten(recorded.states(nest(values), config, *batch.given))
    for name, state in flatten(model.states(*given)).items():
        np.testing.assert_allclose(state.detach(), states[name], rtol=0, atol=1e-12)


@NAMED
@pytest.mark.parametrize("snapshot", [False, True])
def test_steps_are_the_reference_s_however_a_target_is_split(snapshot: bool, config: TransformerConfig) -> None:
    """Beyond the window of a layer, whose places are written over, and for padding on the left."""
    values, batch = values_of(config), Batch(config)
    memory = None if batch.source is None else transformer.encode(nest(values), config, batch.source, batch.source_mask)
    model = model_of(config, values)
    model = fused(model) if snapshot else model
    for splits in ([9], [1] * 9, [3, 1, 1, 1, 3], [4, 2, 3], [5, 1, 1, 2], [8, 1]):
        given = memory, splits, batch.source_mask, batch.target_mask
        found = cache.decode_in_steps(model, tensor(batch.target), tensor(memory), splits, *map(tensor, given[2:]))
        np.testing.assert_allclose(found.detach(), steps.decode_in_steps(nest(values), config, batch.target, *given), rtol=0, atol=1e-12)


SEARCHES: dict[str, dict[str, Any]] = {"greedy_search": {}, "sample": {}, "beam_search": {"beam_size": 3, "n_best": 2, "alpha": 0.6}}


def searched(config: TransformerConfig, searcher: Searcher, values: dict[str, np.ndarray], search: str, prompt: int = 5) -> None:
    """Holds a search to the reference's."""
    batch, options = Batch(config), {"start_id": 1, "end_id": 3, "max_new_tokens": 9, **SEARCHES[search]}
    prefix, mask = batch.target[:, :prompt].copy(), batch.target_mask[:, :prompt]
    prefix[~mask] = 0
    draws = [np.random.default_rng(3).random((2, 9))] if search == "sample" else []
    given = {"prefix": prefix, "source_mask_bs": batch.source_mask, "prefix_mask_bp": mask}
    expected = getattr(decoding, search)(nest(values), config, batch.source, options, *draws, **given)
    of_torch = {name: tensor(array) for name, array in given.items()}
    found = getattr(searcher, search)(tensor(batch.source), options, *map(tensor, draws), **of_torch)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-12)


@NAMED
@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_is_the_reference_s(search: str, config: TransformerConfig) -> None:
    values = values_of(config)
    searched(config, Searcher(model_of(config, values)), values, search)


@pytest.mark.conformance
@pytest.mark.parametrize("name", ["gemma3", "encoder", "dynamic"])
def test_a_program_of_a_step_serves_windows_and_rotations(name: str) -> None:
    config = config_of(name)
    values = values_of(config)
    searcher = Searcher(model_of(config, values), compiled=True)
    for search in ("greedy_search", "beam_search"):
        searched(config, searcher, values, search)
    searched(config, searcher, values, "greedy_search", prompt=4)


@torch.no_grad()
def test_an_answer_that_outgrows_the_original_length_is_what_the_whole_model_says_at_each_token() -> None:
    """The keys that were read rotate anew, by the long factors."""
    scaling = RotaryScaling(kind="longrope", **SCALINGS["longrope"] | {"original_length": 7})
    config = config_of("longrope").replace(rotary_scaling=scaling, padding_id=0)
    model, target = model_of(config, values_of(config)), tensor(Batch(config).target[:, :5])
    target[0, :1] = target[1, :2] = 0
    found = Searcher(model).greedy_search(None, {"start_id": 1, "end_id": 3, "max_new_tokens": 10, "min_new_tokens": 9}, target)
    for token, log_p in zip(found["token_bn"].T, found["log_p_bn"].T, strict=True):
        of_next = model(None, target)[:, -1].index_fill(1, torch.tensor([0, 1]), -torch.inf).log_softmax(1)
        close(of_next.gather(1, token[:, None])[:, 0], log_p)
        target = torch.cat([target, token[:, None]], 1)


@pytest.mark.parametrize("window", [2, 5])
def test_a_layer_with_a_window_keeps_no_more_tokens_than_that(window: int) -> None:
    config = config_of("gemma3").replace(window=window)
    kept = cache.start_cache(model_of(config, values_of(config)), None, batch=2, length=7)
    assert [layer["self_attention"][0].shape[1] for layer in kept["layers"]] == [window, 7, window]
    short = cache.start_cache(model_of(config, values_of(config)), None, batch=2, length=window)
    assert {layer["self_attention"][0].shape[1] for layer in short["layers"]} == {window}


@pytest.mark.parametrize("config", [pytest.param(config_of(name), id=name) for name in ("llama", "encoder", "odd")])
def test_rotary_positions_and_windows_are_those_of_rows_when_padding_is_left_out(config: TransformerConfig) -> None:
    model, batch = model_of(config, values_of(config)), Batch(config)
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
    close(unpadding.unpadded(model, 0)(*given, skip_padding=True), model(*given, skip_padding=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("config", every(3, CONFIGS[:12:2]))
def test_a_port_is_as_exact_as_the_reference_in_its_dtype(config: TransformerConfig, dtype: str) -> None:
    values, batch = values_of(config, dtype), Batch(config)
    wide = {name: value.astype(np.float64) for name, value in values.items()}
    truth = transformer.transformer(nest(wide), config, *batch.given)
    noise = np.abs(transformer.transformer(nest(values), config, *batch.given).astype(np.float64) - truth).max()
    with torch.no_grad():
        found = model_of(config, values)(*map(tensor, batch.given)).double().numpy()
    assert np.abs(found - truth).max() < 4 * noise


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("one_plus", [False, True])
def test_half_precision_rounds_a_norm_as_published_code_does(one_plus: bool, cast: bool) -> None:
    """Gemma's adds 1 and scales in float32, Llama's rounds before it scales."""
    x = torch.randn(2, 3, 16, dtype=torch.bfloat16)
    module = RMSNorm(16, 1e-6, False, one_plus, cast).bfloat16()
    with torch.no_grad():
        module.weight.normal_()
    wide = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    scale = module.weight if cast else module.weight.float()
    expected = (wide.bfloat16() if cast else wide) * (1 + scale if one_plus else scale)
    assert torch.equal(module(x), expected.bfloat16())


def test_norms_are_torch_s_own_and_begin_as_they_do() -> None:
    x = torch.randn(2, 3, 16)
    for ours, peer in ((RMSNorm(16, 1e-5, False), torch.nn.RMSNorm(16, 1e-5)), (LayerNorm(16, 1e-5), torch.nn.LayerNorm(16, 1e-5))):
        assert torch.equal(ours(x), peer(x))
        assert torch.equal(ours(x), type(ours)(16, 1e-5, ours.bias is not None, True)(x))
    config = config_of("gemma3")
    with torch.device("meta"):
        model = Transformer(config)
    model.to_empty(device="cpu").apply(initialise)
    assert not any(value.any() for name, value in weights.export(model, config).items() if name.endswith("scale"))
    assert isinstance(norm(config, 4), RMSNorm)
    assert norm(config, 4).weight.shape == (4,)


def test_a_rotation_in_turn_is_a_product_of_complex_numbers() -> None:
    """As in the published code of Llama, whose pairs lie side by side."""
    config = config_of("llama").replace(rotary_layout="interleaved", rotary_scaling=RotaryScaling())
    x, position = torch.randn(2, 5, 3, 8, dtype=torch.float64), torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 1000, 4095]])
    angle = position[..., None] * config.rotary_base ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angle), angle)[:, :, None]
    torch.testing.assert_close(rotary_embedding(x, position, config), torch.view_as_real(turned).flatten(-2), rtol=1e-12, atol=1e-12)


def test_frequencies_are_exact_in_every_dtype() -> None:
    """Those of a dtype are the nearest numbers to the exact ones."""
    for kind in SCALINGS:
        given = 8, 10000.0, RotaryScaling(kind=kind, **SCALINGS[kind]), 9
        assert torch.equal(rotary_frequencies(*given, torch.float32), rotary_frequencies(*given).float())


def test_gate_and_hidden_layer_are_one_product_in_int8_too() -> None:
    config = config_of("llama")
    model = model_of(config, values_of(config, "float32"))
    for dtype in (None, "int8"):
        network, plain = fused(model, dtype).decoder.layers[0].feed_forward, model.decoder.layers[0].feed_forward
        assert type(network) is FusedFeedForward
        x = torch.randn(2, 3, 12)
        gate, hidden, output = (Int8Projection(part) if dtype else part for part in (plain.gate, plain.hidden, plain.output))
        with torch.no_grad():
            close(network(x), output(torch.nn.functional.silu(gate(x)) * hidden(x)))


def test_scale_and_cap_of_logits_stay_in_a_snapshot() -> None:
    config = config_of("gemma2").replace(logit_scale=0.5, logit_cap=0.25)
    model = model_of(config, values_of(config, "float32"))
    x = torch.randn(2, 3, 12)
    close(fused(model).logits(x), 0.25 * (model.logits.weight @ x[..., None] * 0.5 / 0.25).tanh()[..., 0])


class Plain(torch.nn.Module):
    """A layer of another class, which takes no rotation."""

    def forward(self, x_btd: Any, memory_bsd: Any, self_mask_bhts: Any, cross_mask_bhts: Any) -> Any:
        return x_btd


def test_a_layer_of_another_class_need_not_take_a_rotation_where_none_rotates() -> None:
    config = config_of("interleaved")
    model = model_of(config, values_of(config))
    tokens, layer = torch.arange(8).reshape(2, 4), model.decoder.layers[1]
    model.decoder.layers[1] = Plain()
    assert model(None, tokens).shape == (2, 4, 23)
    model.decoder.layers[1], model.decoder.layers[0] = layer, Plain()
    with pytest.raises(TypeError, match="positional arguments"):
        model(None, tokens)


@pytest.mark.parametrize("component", ["multi_head_attention", "encoder_layer", "decoder_layer", "encoder", "decoder"])
def test_a_component_is_given_positions(component: str) -> None:
    """An attention that is given none numbers its tokens from 0."""
    config = config_of("gemma3")
    config = config.replace(encoder_layers=1, decoder_layers=0) if component.startswith("encoder") else config
    function = port.components[component](config, torch.float64)
    module = function.args[0] if hasattr(function, "args") else function
    module.double()
    x = torch.randn(2, 4, 12, dtype=torch.float64)
    given = (
        {"query_btd": x, "memory_bsd": x} if component == "multi_head_attention" else {"x_bsd" if component == "encoder" else "x_btd": x}
    )
    name = "position_bs" if component == "encoder" else "position_bt"
    place = torch.arange(4)[None]
    # Only differences of positions matter, up to rounding.
    close(function(**given), function(**given, **{name: place + 9}))
    assert not torch.allclose(function(**given), function(**given, **{name: 2 * place}))


@pytest.mark.conformance
@pytest.mark.parametrize("name", ["gemma3", "longrope", "dynamic", "encoder"])
def test_one_graph_serves_every_length(name: str) -> None:
    torch.compiler.reset()
    config = config_of(name).replace(decoder_layers=2)
    model, traced = model_of(config, values_of(config)), CompileCounter()
    graph = torch.compile(model, backend=traced, fullgraph=True, dynamic=True)
    for length in (9, 3, 6):
        tokens = torch.arange(4 * length).reshape(4, length) % 22 + 1
        # a tensor of its own: the strides of a view would tie the source's length to the target's
        source = tokens[:, :3].contiguous() if config.encoder_layers else None
        close(graph(source, tokens), model(source, tokens))
    assert traced.frame_count == 1


@pytest.mark.conformance
@pytest.mark.parametrize("name", ["gemma2", "yarn"])
def test_a_compiled_model_is_the_eager_one(name: str) -> None:
    config = config_of(name)
    model = model_of(config, values_of(config))
    graph = compiled(model)
    for length in (9, 7, 5):
        tokens = torch.arange(2 * length).reshape(2, length)
        torch.testing.assert_close(graph(None, tokens), model(None, tokens), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", every(3, ["longrope", "gemma2", "gemma3"]))
def test_an_exported_model_serves_every_length(name: str) -> None:
    config = config_of(name).replace(decoder_layers=2)
    model = model_of(config, values_of(config))
    dynamic = {"source": None, "target": {0: torch.export.Dim("rows"), 1: torch.export.Dim("length", min=2)}}
    program = torch.export.export(model, (None, torch.arange(10).reshape(2, 5)), dynamic_shapes=dynamic).module()
    for rows, length in ((2, 5), (3, 7), (1, 3)):
        tokens = torch.arange(rows * length).reshape(rows, length)
        close(program(None, tokens), model(None, tokens))


@pytest.mark.conformance
def test_onnx_runtime_gives_the_numbers_of_a_model_with_windows_and_rotations() -> None:
    onnxruntime, _ = pytest.importorskip("onnxruntime"), pytest.importorskip("onnxscript")
    config = config_of("gemma3")
    model = model_of(config, values_of(config, "float32"))
    dynamic = {"source": None, "target": {1: torch.export.Dim("length", min=2, max=64)}}
    exported = torch.onnx.export(model, (None, torch.arange(5)[None]), dynamo=True, dynamic_shapes=dynamic, verbose=False)
    session = onnxruntime.InferenceSession(exported.model_proto.SerializeToString())
    tokens = torch.arange(9)[None]
    (found,) = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})
    close(torch.from_numpy(found), model(None, tokens).detach())


@pytest.mark.parametrize("size", [9, conformance(3)])
def test_a_window_that_hides_nothing_leaves_the_kernel_its_triangle(size: int) -> None:
    """A mask would take the fused kernel's own, which skips what is later."""
    config = config_of("mistral").replace(window=9)
    model, seen = model_of(config, values_of(config)), []

    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.nn.functional.scaled_dot_product_attention:
                seen.append((kwargs["is_causal"], kwargs["attn_mask"] is None))
            return function(*args, **(kwargs or {}))

    with Seen():
        model(None, torch.arange(2 * size).reshape(2, size))
        model(None, torch.arange(20).reshape(2, 10))
    assert seen == [(True, True)] * 3 + [(False, False)] * 3
