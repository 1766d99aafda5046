"""What is special to the PyTorch port; what it shares with the others is proved by the judge."""

import copy
import dataclasses
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reference_numpy import TransformerConfig, parameters, preset
from rosettaformer.conformance.case import Case
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.compare import compare
from rosettaformer.conformance.ports.port import NotCovered
from rosettaformer.conformance.reference import tolerance

torch = pytest.importorskip("torch")

from impl_torch import weights  # noqa: E402
from impl_torch.attention import MultiHeadAttention, scaled_dot_product_attention  # noqa: E402
from impl_torch.dropout import Dropout  # noqa: E402
from impl_torch.embedding import Embedding  # noqa: E402
from impl_torch.fast.compiled import compiled  # noqa: E402
from impl_torch.projection import Projection  # noqa: E402
from impl_torch.softmax import softmax  # noqa: E402
from impl_torch.transformer import Transformer  # noqa: E402
from rosettaformer.conformance.ports.adapters.torch import Adapter  # noqa: E402


@pytest.fixture
def config() -> TransformerConfig:
    return preset("tiny", source_vocabulary=19, target_vocabulary=19, encoder_layers=1, decoder_layers=1, dropout_rate=0.5)


@pytest.fixture
def arrays(config: TransformerConfig) -> dict[str, np.ndarray]:
    return parameters.initialise(config, seed=0, dtype=np.float32)


def random(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


def tokens(length: int) -> Any:
    return torch.arange(3 * length).reshape(3, length) % 19


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_load_and_export_keep_every_bit(config: TransformerConfig, dtype: str) -> None:
    numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    arrays = parameters.initialise(config.replace(attention_bias=True, output_bias=True), seed=1, dtype=numpy_dtype)
    arrays["logits.bias"][:2] = np.nan, -0.0
    config = config.replace(attention_bias=True, output_bias=True)
    module = Transformer(config).to(getattr(torch, dtype))
    weights.load(module, arrays, config)
    exported = weights.export(module, config)
    assert list(exported) == list(arrays)
    for name, array in arrays.items():
        assert exported[name].dtype == numpy_dtype
        assert exported[name].flags.c_contiguous
        assert exported[name].tobytes() == array.tobytes()


def test_export_is_a_copy(config: TransformerConfig) -> None:
    module = Transformer(config)
    weights.export(module, config)["source_embedding.table"][:] = 0
    assert module.source_embedding.table.any()


def test_load_lists_every_problem_and_changes_nothing(config: TransformerConfig, arrays: dict[str, np.ndarray]) -> None:
    module = Transformer(config)
    before = copy.deepcopy(module.state_dict())
    arrays["encoder.layers.0.feed_forward.hidden.bias"] = arrays["encoder.layers.0.feed_forward.hidden.bias"].astype(np.float64)
    arrays["encoder.layers.0.self_attention.query.kernel"] = arrays["encoder.layers.0.self_attention.query.kernel"][1:]
    del arrays["decoder.layers.0.feed_forward_norm.scale"]
    arrays["logits.bias"] = np.zeros(19, np.float32)
    with pytest.raises(ValueError) as error:
        weights.load(module, arrays, config)
    for words in (
        "missing decoder.layers.0.feed_forward_norm.scale",
        "unexpected logits.bias",
        "query.kernel must have shape (32, 4, 8); got (31, 4, 8)",
        "hidden.bias must be float32; got float64",
    ):
        assert words in str(error.value)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_load_names_parameters_that_nothing_fills(config: TransformerConfig, arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"nothing fills the module's decoder\.layers\.0\.cross_attention\.query\.bias"):
        weights.load(Transformer(config.replace(attention_bias=True)), arrays, config)


def test_load_serves_any_module_and_table() -> None:
    config = preset("tiny")
    arrays = {name: np.full(shape, 7.0, np.float32) for name, shape in parameters.shapes(config, "layer_norm").items()}
    module = torch.nn.LayerNorm(config.model_width)
    table = (("scale", "weight", "d"), ("offset", "bias", "d"))
    weights.load(module, arrays, config, "layer_norm", table)
    assert weights.export(module, config, "layer_norm", table)["offset"].tolist() == [7.0] * config.model_width


def test_state_dict_round_trip(config: TransformerConfig) -> None:
    module, other = Transformer(config).eval(), Transformer(config).eval()
    other.load_state_dict(module.state_dict(), strict=True)
    assert torch.equal(module(tokens(5), tokens(4)), other(tokens(5), tokens(4)))


def test_tied_table_is_one_parameter(config: TransformerConfig) -> None:
    module = copy.deepcopy(Transformer(config).double())
    assert module.logits.weight is module.source_embedding.table is module.target_embedding.table
    assert sum(p.numel() for p in module.parameters()) == parameters.count(config)
    module(tokens(5), tokens(4)).sum().backward()
    gradient = module.source_embedding.table.grad
    assert gradient is not None
    assert gradient.all(dim=1).all()


@pytest.mark.parametrize(("inputs", "outputs"), [(30, 50), (64, 16)])
def test_fresh_kernels_are_xavier_uniform(inputs: int, outputs: int) -> None:
    linear = Projection(inputs, outputs)
    limit = (6 / (inputs + outputs)) ** 0.5
    assert 0.95 * limit < linear.weight.abs().max() <= limit
    assert not linear.bias.any()


def test_dropout_in_training_only(config: TransformerConfig) -> None:
    module = Transformer(config)
    assert not torch.equal(module(tokens(5), tokens(4)), module(tokens(5), tokens(4)))
    module.eval()
    assert torch.equal(module(tokens(5), tokens(4)), module(tokens(5), tokens(4)))
    x = torch.ones(200, 200, dtype=torch.float64)
    dropped = Dropout(0.25)(x)
    assert set(dropped.unique().tolist()) == {0.0, 1 / 0.75}
    assert 0.24 < (dropped == 0).double().mean() < 0.26
    assert torch.equal(Dropout(0.25).eval()(x), x)


def test_dropout_of_the_weights_reaches_the_output(config: TransformerConfig) -> None:
    attention = MultiHeadAttention(config.replace(attention_dropout_rate=0.5))
    query, memory = random(2, 3, 32).float(), random(2, 5, 32).float()
    nothing = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    output_btd, weights_bhts = attention(query, memory, return_weights=True, keep_bhts=nothing)
    assert not output_btd.any()
    assert torch.allclose(weights_bhts.sum(-1), torch.ones(()))
    assert not attention.eval()(query, memory, keep_bhts=nothing).any()  # a mask that is given applies in every mode
    assert torch.equal(attention(query, memory), attention(query, memory))
    attention.train()
    assert not torch.equal(attention(query, memory), attention(query, memory))


@pytest.mark.parametrize("training", [False, True])
def test_the_fused_kernel_draws_its_own_dropout(monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
    calls: list[dict[str, Any]] = []
    kernel = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *args, **kwargs: calls.append(kwargs) or kernel(*args, **kwargs)
    )
    query, key = random(2, 3, 6, 8), random(2, 5, 6, 8)
    scaled_dot_product_attention(query, key, key, dropout_rate=0.25, training=training)
    assert [call["dropout_p"] for call in calls] == [0.25 if training else 0.0]
    scaled_dot_product_attention(query, key, key, keep_bhts=torch.ones(2, 6, 3, 5, dtype=torch.bool), dropout_rate=0.25, training=training)
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("value_size", [8, 5])
@pytest.mark.parametrize("return_weights", [False, True])
def test_empty(dtype: Any, value_size: int, return_weights: bool) -> None:
    query, key, value = (random(2, 3, 6, 8, dtype=dtype), random(2, 7, 2, 8, dtype=dtype), random(2, 7, 2, value_size, dtype=dtype))
    inputs = [x.requires_grad_() for x in (query, key, value)]
    mask = torch.ones(2, 1, 3, 7, dtype=torch.bool)
    mask[0, :, 1] = False
    bias = random(1, 6, 3, 7, dtype=dtype)
    hidden = torch.where(mask, bias, -torch.inf)
    keep = torch.ones(2, 6, 3, 7, dtype=torch.bool)
    extras: list[dict[str, Any]] = [
        {},
        {"bias_bhts": bias},
        {"bias_bhts": hidden},
        {"causal": True},
        {"keep_bhts": keep, "dropout_rate": 0.1},
    ]
    extras += [{"dropout_rate": 0.1, "training": True}]
    for extra in extras:
        result: Any = scaled_dot_product_attention(query, key, value, mask, return_weights=return_weights, **extra)
        output = result[0] if return_weights else result
        gradients = torch.autograd.grad(output.sum(), inputs)
        assert not output[0, 1].any()
        assert output[1].any()
        assert not gradients[0][0, 1].any()
        assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(("target", "source"), [(1, 5), (3, 5), (5, 5), (7, 5)])
@pytest.mark.parametrize("padded", [False, True])
def test_causal(target: int, source: int, padded: bool) -> None:
    query, key, value = random(2, target, 4, 8), random(2, source, 4, 8), random(2, source, 4, 8)
    mask = torch.arange(source).expand(2, 1, 1, -1) > 0 if padded else None
    fused = scaled_dot_product_attention(query, key, value, mask, causal=True)
    explicit, weights_bhts = scaled_dot_product_attention(query, key, value, mask, causal=True, return_weights=True)
    torch.testing.assert_close(fused, explicit)
    future = torch.arange(source) > torch.arange(target)[:, None] + source - target
    assert not weights_bhts[..., future].any()
    assert weights_bhts[..., -1, 1:].all()


def test_fused_path_makes_no_needless_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def spy(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs)
        assert all(x.untyped_storage().data_ptr() in given for x in args)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    query, key, value = random(2, 5, 6, 8), random(2, 5, 2, 8), random(2, 5, 2, 8)
    given = {x.untyped_storage().data_ptr() for x in (query, key, value)}
    mask, bias = torch.ones(2, 1, 1, 5, dtype=torch.bool), random(1, 6, 5, 5)
    for extra in ({}, {"causal": True}, {"mask_bhts": mask}, {"bias_bhts": bias}):
        scaled_dot_product_attention(query, key, value, **extra)
    scaled_dot_product_attention(query[:, :1], key, value, causal=True)
    assert [call["is_causal"] for call in calls] == [False, True, False, False, False]
    assert [call["attn_mask"] for call in calls[:2] + calls[4:]] == [None, None, None]
    assert calls[2]["attn_mask"] is mask
    assert calls[3]["attn_mask"] is bias


def test_without_a_padding_id_no_mask_is_made(config: TransformerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Transformer(config.replace(padding_id=None)).eval()
    for name, layer in module.named_modules():
        if isinstance(layer, MultiHeadAttention):
            monkeypatch.setattr(layer, "forward", _refuse_mask(layer.forward, name))
    assert module(tokens(5), tokens(4)).shape == (3, 4, 19)


def _refuse_mask(forward: Any, name: str) -> Any:
    def checked(query: Any, memory: Any, mask: Any, **extra: Any) -> Any:
        assert mask is None, name
        return forward(query, memory, mask, **extra)

    return checked


def test_softmax_of_an_empty_row_stays_finite_backward() -> None:
    logits = random(2, 3).requires_grad_()
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        softmax(logits, torch.tensor([[True, False, True], [False, False, False]]))[..., 0].sum().backward()
    assert not logits.grad[1].any()
    assert logits.grad[0, 0] != 0


def test_ids_of_a_call_are_read_once(config: TransformerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    tolist = torch.Tensor.tolist

    def spy(tensor: Any) -> Any:
        reads.append(tensor.numel())
        return tolist(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", spy)
    Transformer(config).eval()(tokens(5), tokens(4).int())
    assert reads == [4]


def test_bad_ids(config: TransformerConfig) -> None:
    module = Transformer(config.replace(share_embeddings=False, tie_logits=False, target_vocabulary=11)).eval()
    with pytest.raises(ValueError, match=r"token ids must lie in 0 \.\. 10; got 18"):
        module(tokens(4), tokens(7))
    with pytest.raises(ValueError, match=r"token ids must lie in 0 \.\. 18; got -1"):
        module.encode(tokens(4) - 1)
    with pytest.raises(ValueError, match="token must be integer token ids"):
        Embedding(19, 8, True)(torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="decoding needs at least one decoder layer; got decoder_layers=0"):
        Transformer(config.replace(decoder_layers=0))(tokens(4), tokens(4))


@pytest.mark.slow
def test_compiled_equals_eager(config: TransformerConfig) -> None:
    module = Transformer(config).eval()
    run = compiled(module)
    source, target = tokens(7), tokens(5)
    source[0, :3] = 0
    source[1] = 0
    with torch.no_grad():
        expected = module(source, target)
        torch.testing.assert_close(run(source, target), expected, atol=1e-5, rtol=1e-5)
        with torch._dynamo.config.patch(error_on_recompile=True):
            torch.testing.assert_close(run(source.flip(0), target.flip(0)), expected.flip(0), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match=r"token ids must lie in 0 \.\. 18; got 19"):
        run(source + 1, target)
    with pytest.raises(ValueError, match="source mask must be boolean"):
        run(source, target, source_mask_bs=source)


@pytest.mark.slow
@pytest.mark.parametrize("padding_id", [0, None])
def test_export_to_a_graph(config: TransformerConfig, padding_id: int | None) -> None:
    module = Transformer(config.replace(padding_id=padding_id)).eval()
    b, s, t = (torch.export.Dim(name, min=2, max=64) for name in "bst")
    program = torch.export.export(module, (tokens(7), tokens(5)), dynamic_shapes={"source": {0: b, 1: s}, "target": {0: b, 1: t}})
    for source, target in ((tokens(9), tokens(6)), (tokens(4)[:2], tokens(4)[:2]), (tokens(3).repeat(4, 1), tokens(8).repeat(4, 1))):
        torch.testing.assert_close(program.module()(source, target), module(source, target))


class Attention(torch.nn.Module):
    """Self-attention with one parameter for the three projections, whose parts are views; some are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.together = torch.nn.Parameter(torch.randn(3 * 12, 12), requires_grad=False)
        self.output = torch.nn.Linear(12, 12, bias=False)

    query, key, value = (property(lambda self, part=part: self.together.chunk(3)[part]) for part in range(3))

    def forward(self, query_btd: Any, memory_bsd: Any, mask_bhts: Any = None) -> Any:
        queries, keys, values = ((x @ kernel.T).unflatten(-1, (3, 4)) for x, kernel in zip(
            (query_btd, memory_bsd, memory_bsd), (self.query, self.key, self.value), strict=True))  # fmt: skip
        return self.output(scaled_dot_product_attention(queries, keys, values, mask_bhts).flatten(-2))


VIEWS = SimpleNamespace(
    components={"multi_head_attention": lambda config, dtype: Attention()},
    weights=(
        ("query.kernel", "query", "(h k) d"),
        ("key.kernel", "key", "(g k) d"),
        ("value.kernel", "value", "(g e) d"),
        ("output.kernel", "output.weight", "d (h e)"),
    ),
)
SIZES = {"model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4, "attention_bias": False}


def attention_case(**inputs: Any) -> Case:
    case = next(case for case in all_cases(SIZES, grad=True) if case.id == "multi_head_attention_vjp/left_padding")
    return dataclasses.replace(case, inputs=dict(case.inputs) | inputs)


def test_gradients_of_views_of_a_frozen_parameter_are_those_of_the_truth() -> None:
    case = attention_case()
    found, expected = Adapter(VIEWS).run(case), tolerance.expect(case)
    assert sorted(found) == sorted(expected)
    assert len([name for name in found if name.startswith("parameters.")]) == 4
    for name, expectation in expected.items():
        assert compare(expectation, found[name]).message == "", name


def test_a_module_that_takes_no_keep_masks_does_not_cover_them() -> None:
    keep = np.ones((3, 3, 5, 7), dtype=bool)
    with pytest.raises(NotCovered, match=r"Attention\.forward takes no keep masks"):
        Adapter(VIEWS).run(attention_case(keep_bhts=keep))
    with pytest.raises(NotCovered, match="takes no keep masks"):
        function = SimpleNamespace(components={"scaled_dot_product_attention": lambda config, dtype: lambda query_bthk: query_bthk})
        Adapter(function).run(Case("x", "scaled_dot_product_attention", preset("tiny"), {"query_bthk": keep * 1.0, "keep_bhts": keep}))
