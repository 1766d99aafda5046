"""The PyTorch port in the hands of its users: torch's transforms, exporters, wrappers and copies are right with it, or refused."""

import copy
import dataclasses
import importlib.util
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference_numpy import TransformerConfig, preset
from reference_numpy import transformer as reference
from reference_numpy.parameters import nest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from torch._dynamo.testing import CompileCounter  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

from impl_torch import attention, loss, training, weights  # noqa: E402
from impl_torch.decoding import Searcher  # noqa: E402
from impl_torch.fast.packing import packed_arguments  # noqa: E402
from impl_torch.projection import initialise  # noqa: E402
from impl_torch.transformer import Transformer  # noqa: E402

CONFIG = preset("tiny", source_vocabulary=19, target_vocabulary=19, encoder_layers=1, decoder_layers=1, output_bias=True)
ALIASES = ("target_embedding.weight", "logits.weight")


def tokens(batch: int, length: int) -> Any:
    return torch.arange(batch * length).reshape(batch, length) % 18 + 1


SOURCE, TARGET = tokens(3, 5), tokens(3, 4)


def model_of(config: TransformerConfig = CONFIG, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return Transformer(config).eval()


def tied(model: Any) -> bool:
    return model.logits.weight is model.target_embedding.weight is model.source_embedding.weight


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding_id", [0, None])
def test_one_graph_serves_every_batch_and_every_length(padding_id: int | None) -> None:
    torch.compiler.reset()
    traced, model = CompileCounter(), model_of(CONFIG.replace(padding_id=padding_id))
    graph = torch.compile(model, backend=traced, fullgraph=True, dynamic=True)
    for batch, source, target in ((3, 7, 5), (5, 9, 6), (2, 2, 2), (4, 4, 4), (7, 3, 30), (6, 5, 5), (8, 6, 6), (9, 7, 7)):
        given = tokens(batch, source), tokens(batch, target)
        close(graph(*given), model(*given))
    assert traced.frame_count == 1


def test_causal_attention_of_two_dynamic_lengths_is_one_graph() -> None:
    torch.compiler.reset()
    traced = CompileCounter()
    graph = torch.compile(attention.scaled_dot_product_attention, backend=traced, fullgraph=True, dynamic=True)
    for target, source in ((5, 7), (4, 6), (9, 5)):
        query, key = torch.randn(2, target, 4, 8), torch.randn(2, source, 2, 8)
        close(graph(query, key, key, causal=True), attention.scaled_dot_product_attention(query, key, key, causal=True))
    assert traced.frame_count == 1


def _minus_infinity(query: Any, key: Any, value: Any, attn_mask: Any, *_: Any, **options: Any) -> Any:
    """Attention by the textbook: NaN for a row without keys."""
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return (scores + _bias(attn_mask, query.dtype)).softmax(-1) @ value


def _lowest_number(query: Any, key: Any, value: Any, attn_mask: Any, *_: Any, **options: Any) -> Any:
    """Attention with the lowest number for what is masked: the mean of all values for a row without keys."""
    return _minus_infinity(query, key, value, _bias(attn_mask, query.dtype).clamp(min=torch.finfo(query.dtype).min))


def _bias(attn_mask: Any, dtype: Any) -> Any:
    return torch.zeros(attn_mask.shape, dtype=dtype).masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else attn_mask


KERNELS = [_minus_infinity, _lowest_number]


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_exported_graph_needs_no_kernel_that_zeroes_empty_rows(kernel: Callable[..., Any]) -> None:
    class Elsewhere(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            attends = target is torch.ops.aten.scaled_dot_product_attention.default
            return kernel(*args, **kwargs) if attends else super().call_function(target, args, kwargs)

    model, source, target = model_of(), SOURCE.clone(), TARGET.clone()
    source[1], target[0, :2] = 0, 0
    graph = torch.export.export(model, (source, target)).module(check_guards=False)
    assert any(node.target is torch.ops.aten.scaled_dot_product_attention.default for node in graph.graph.nodes)
    expected = reference.transformer(nest(weights.export(model, CONFIG)), CONFIG, source.numpy(), target.numpy())
    with torch.no_grad():
        close(Elsewhere(graph).run(source, target), torch.from_numpy(expected))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("extra", ["mask", "bias", "both", "causal"])
def test_where_a_kernel_is_not_known_empty_rows_are_zero_forward_and_backward(
    monkeypatch: pytest.MonkeyPatch, extra: str, kernel: Callable[..., Any]
) -> None:
    given = [torch.randn(2, length, 4, 8, dtype=torch.float64, requires_grad=True) for length in (6, 5, 5)]
    mask = torch.ones(2, 1, 6, 5, dtype=torch.bool)
    mask[0, :, 1] = False
    bias = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    options: dict[str, Any] = {
        "mask": {"mask_bhts": mask},
        "bias": {"bias_bhts": torch.where(mask, 0.0, -torch.inf).double()},
        "both": {"mask_bhts": mask, "bias_bhts": bias},
        "causal": {"mask_bhts": mask, "causal": True},
    }[extra]

    def run(*given: Any) -> tuple[Any, ...]:
        output = attention.scaled_dot_product_attention(*given, **options)
        return output, *torch.autograd.grad(output.square().sum(), given)

    expected = run(*given)
    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    for found, wanted in zip(make_fx(run)(*given)(*given), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_bias_has_the_dtype_of_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda query, *_, attn_mask, **__: given.append(attn_mask) or query)
    query = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16)
    attention.scaled_dot_product_attention(query, query, query, bias_bhts=torch.zeros(1, 1, 2, 2))
    assert given[0].dtype == torch.bfloat16


@pytest.mark.parametrize("config", [CONFIG, CONFIG.replace(share_embeddings=False, source_vocabulary=11)], ids=["shared", "tied"])
def test_no_way_of_loading_loses_a_tie(config: TransformerConfig) -> None:
    model, source = model_of(config), SOURCE % 11
    expected, state = model(source, TARGET), model.state_dict()
    table = state["source_embedding.weight" if config.share_embeddings else "target_embedding.weight"]
    older = state | dict.fromkeys(ALIASES, table)
    twice = state | {name: table.clone() for name in ALIASES}
    last = {name: tensor for name, tensor in older.items() if not name.endswith("embedding.weight") or name == "source_embedding.weight"}
    last = last if not config.share_embeddings else {name: tensor for name, tensor in last.items() if name != "source_embedding.weight"}
    for given in (state, older, twice, last):
        for assign in (False, True):
            for device in ("cpu", "meta"):
                with torch.device(device):
                    fresh = Transformer(config).eval()
                if device == "meta" and not assign:
                    fresh.to_empty(device="cpu")
                fresh.load_state_dict(given, assign=assign)
                assert fresh.logits.weight is fresh.target_embedding.weight
                assert torch.equal(fresh(source, TARGET), expected)
    holder = torch.nn.ModuleDict({"inner": model_of(config, 1)})
    holder.load_state_dict({f"inner.{name}": tensor for name, tensor in older.items()})
    assert torch.equal(holder["inner"](source, TARGET), expected)


@pytest.mark.parametrize("name", ALIASES)
def test_two_tensors_for_one_tie_are_refused(name: str) -> None:
    model = model_of()
    state = model.state_dict()
    with pytest.raises(RuntimeError, match=rf"{name} must equal source_embedding\.weight, since both are one parameter"):
        model.load_state_dict(state | {name: state["source_embedding.weight"] + 1})


def older(state: dict[str, Any]) -> dict[str, Any]:
    """The state dict under the names that tables and norms once had."""
    named = {}
    for name, tensor in state.items():
        owner, _, own = name.rpartition(".")
        renamed = {"weight": "scale", "bias": "offset"} if owner.endswith("norm") else {"weight": "table"}
        named[f"{owner}.{renamed.get(own, own)}" if owner.endswith(("norm", "embedding")) else name] = tensor
    return named


def test_a_state_dict_with_the_older_names_is_loaded() -> None:
    config = CONFIG.replace(positions="learned", max_positions=9, embedding_norm=True)
    model, fresh = model_of(config), model_of(config, 1)
    given = older(model.state_dict())
    assert {"source_embedding.table", "source_position_embedding.table", "target_embedding_norm.scale"} < set(given)
    fresh.load_state_dict(given)
    assert torch.equal(fresh(SOURCE, TARGET), model(SOURCE, TARGET))


def test_a_state_dict_has_a_shared_table_once_and_is_saved_by_both_functions_of_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model, path = model_of(), tmp_path / "model.safetensors"
    assert not set(ALIASES) & set(model.state_dict())
    for save in (lambda: safetensors.save_file(model.state_dict(), path), lambda: safetensors.save_model(model, str(path))):
        save()
        other = model_of(seed=1)
        safetensors.load_model(other, path)
        assert tied(other)
        assert torch.equal(other(SOURCE, TARGET), model(SOURCE, TARGET))


def test_what_is_done_to_one_side_of_a_tie_is_done_to_the_table() -> None:
    model = model_of()
    torch.optim.SGD(model.logits.parameters(), 1.0).param_groups[0]["params"][0].grad = torch.ones(19, 32)
    assert model.source_embedding.weight.grad is not None
    model.target_embedding.requires_grad_(False)
    assert not model.source_embedding.weight.requires_grad
    assert tied(model.half().float())


def test_replaced_sides_of_a_tie_are_computed_with_saved_and_not_exported() -> None:
    model = model_of()
    model.logits.weight = torch.nn.Parameter(torch.zeros(19, 32))
    torch.testing.assert_close(model(SOURCE, TARGET), torch.zeros(3, 4, 19) + model.logits.bias)
    assert {name for name in ALIASES if name in model.state_dict()} == {"logits.weight"}
    other = model_of()
    other.logits.weight = torch.nn.Parameter(torch.ones(19, 32))
    other.load_state_dict(model.state_dict())
    assert not other.logits.weight.any()
    with pytest.raises(ValueError, match=r"no array would hold the module's logits\.weight"):
        weights.export(model, CONFIG)
    model = model_of()
    torch.nn.utils.parametrize.register_parametrization(model.source_embedding, "weight", Doubled())
    with pytest.raises(ValueError, match=r"target_embedding\.weight must be its source_embedding\.weight, since the config ties them"):
        weights.export(model, CONFIG)


def test_a_stock_embedding_in_the_place_of_ours_is_called_as_users_call_it_or_refused() -> None:
    config = CONFIG.replace(scale_embedding=False, tie_logits=False, share_embeddings=False)
    model = model_of(config)
    expected, table = model(SOURCE, TARGET), model.source_embedding.weight
    model.source_embedding = torch.nn.Embedding(19, 32, _weight=table)
    assert torch.equal(model(SOURCE, TARGET), expected)
    weights.export(model, config)
    scaled = model_of()
    scaled.source_embedding = torch.nn.Embedding(19, 32)
    with pytest.raises(ValueError, match=r"an embedding of this config scales its rows or skips some.* got an nn\.Embedding"):
        scaled(SOURCE, TARGET)


def test_functional_calls_leave_the_model_as_it_was() -> None:
    model = model_of()
    expected, parameters = model(SOURCE, TARGET), dict(model.named_parameters())
    doubled = torch.func.functional_call(model, {name: 2 * value for name, value in parameters.items()}, (SOURCE, TARGET))
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    close(doubled, other(SOURCE, TARGET))
    gradients = torch.func.grad(lambda given: torch.func.functional_call(model, given, (SOURCE, TARGET)).sum())(parameters)
    assert tied(model)
    assert isinstance(model.source_embedding.weight, torch.nn.Parameter)
    assert torch.equal(model(SOURCE, TARGET), expected)
    model(SOURCE, TARGET).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"])
def test_a_copy_has_ties_of_its_own(copied: Callable[[Any], Any]) -> None:
    model = model_of()
    other = copied(model)
    assert tied(other)
    assert other.logits.weight is not model.logits.weight
    assert torch.equal(other(SOURCE, TARGET), model(SOURCE, TARGET))


class LowRank(torch.nn.Module):
    """What users put in the place of a linear layer; it looks like one."""

    def __init__(self, base: Any, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, base.out_features, bias=False)

    weight, bias, in_features = (property(lambda self, name=name: getattr(self.base, name)) for name in ("weight", "bias", "in_features"))

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


class Doubled(torch.nn.Module):
    """A parametrisation with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, weight: Any) -> Any:
        return self.factor * weight


def test_export_leaves_out_no_parameter() -> None:
    model = model_of()
    arrays = weights.export(model, CONFIG)
    model.logits = torch.nn.Linear(32, 19)
    with pytest.raises(ValueError, match=r"no array would hold the module's logits\.weight"):
        weights.export(model, CONFIG)
    model = model_of()
    model.encoder.layers[0].feed_forward.hidden = LowRank(model.encoder.layers[0].feed_forward.hidden)
    with pytest.raises(ValueError, match=r"hidden\.down\.weight\n.*hidden\.up\.weight"):
        weights.export(model, CONFIG)
    model = model_of()
    torch.nn.utils.parametrize.register_parametrization(model.encoder.layers[0].feed_forward.hidden, "weight", Doubled())
    name = "encoder.layers.0.feed_forward.hidden.kernel"
    np.testing.assert_array_equal(weights.export(model, CONFIG)[name], 2 * arrays[name])


def test_parameters_without_values_are_neither_loaded_nor_exported() -> None:
    with torch.device("meta"):
        model = Transformer(CONFIG)
    with pytest.raises(ValueError, match="can hold no values: it is on the meta device"):
        weights.load(model, weights.export(model_of(), CONFIG), CONFIG)
    with pytest.raises(ValueError, match="has no values: it is on the meta device"):
        weights.export(model, CONFIG)


def test_ids_without_values_are_not_read() -> None:
    model = model_of()
    expected = model(SOURCE, TARGET)
    batch = torch.func.vmap(lambda source: model(source, TARGET))(torch.stack([SOURCE, SOURCE.flip(1)]))
    close(batch, torch.stack([expected, model(SOURCE.flip(1), TARGET)]))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert model.training_loss(mode.from_tensor(SOURCE), mode.from_tensor(TARGET)).shape == ()
    with torch.device("meta"):
        assert Transformer(CONFIG).training_loss(SOURCE.to("meta"), TARGET.to("meta")).shape == ()
    for graph in _traced(model):
        close(graph(SOURCE, TARGET), expected)
        empty = torch.cat([torch.zeros_like(SOURCE[:1]), SOURCE[1:]])
        close(graph(empty, TARGET), model(empty, TARGET))


def _traced(model: Any) -> Iterator[Any]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield make_fx(model)(SOURCE, TARGET)
        yield torch.jit.trace(model, (SOURCE, TARGET))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_loss_under_autocast_is_float32(dtype: Any) -> None:
    model = model_of()
    expected = model.training_loss(SOURCE, TARGET, 0.1)
    with torch.autocast("cpu", dtype):
        found = model.training_loss(SOURCE, TARGET, 0.1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=0)
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler.scale(found).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**16
    assert model.to(dtype).training_loss(SOURCE, TARGET).dtype == dtype


def test_the_training_loss_is_that_of_a_call_with_hooks_and_reads_the_ids_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    model = model_of()
    model.register_forward_hook(lambda *_: calls.append("forward"))
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: calls.append("read") or tolist(tensor))
    model.training_loss(SOURCE, TARGET)
    assert calls == ["read", "forward"]


@pytest.mark.exhaustive
def test_sharded_and_distributed_models_have_the_plain_gradients(tmp_path: Path) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = model_of()
    expected = torch.autograd.grad(model.training_loss(SOURCE, TARGET, 0.1), [*model.parameters()])
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        replica = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(model))
        input_bt, label_bt = loss.teacher_forcing(TARGET)
        loss.cross_entropy(replica(SOURCE, input_bt), label_bt, label_bt != 0, 0.1).backward()
        sharded = fully_shard(copy.deepcopy(model))
        sharded.training_loss(SOURCE, TARGET, 0.1).backward()
        for wanted, one, other in zip(expected, replica.parameters(), sharded.parameters(), strict=True):
            torch.testing.assert_close(one.grad, wanted)
            torch.testing.assert_close(other.grad.full_tensor(), wanted)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
        assert fully_shard(copy.deepcopy(model), mp_policy=policy).training_loss(SOURCE, TARGET).dtype == torch.float32
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantisers_find_the_projections() -> None:
    model = model_of()
    kinds = [type(module) for module in model.encoder.modules() if isinstance(module, torch.nn.Linear)]
    assert kinds == [torch.nn.Linear] * 6  # `torch.export` writes down the class, and torch's quantisers look for this one
    found = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    assert not any(type(module) is torch.nn.Linear for module in found.modules())
    torch.testing.assert_close(found(SOURCE, TARGET), model(SOURCE, TARGET), rtol=0, atol=0.3)


def test_a_projection_starts_with_the_numbers_of_the_reference_after_to_empty_too() -> None:
    with torch.device("meta"):
        model = Transformer(CONFIG)
    torch.manual_seed(0)
    model.to_empty(device="cpu").apply(initialise)
    hidden = model.encoder.layers[0].feed_forward.hidden
    limit = (6 / (32 + 64)) ** 0.5
    for weight, bias in ((hidden.weight, hidden.bias), (model_of().encoder.layers[0].feed_forward.hidden.weight, hidden.bias)):
        assert 0.98 * limit < weight.abs().max() <= limit
        assert not bias.any()
    assert tied(model)
    assert (model.encoder.layers[0].feed_forward_norm.weight == 1).all()


class Shifted(torch.nn.Module):
    """A layer of a user, which looks at the token before, around one of ours."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, mask: Any = None) -> Any:
        return self.layer(x + torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1], mask)


@pytest.mark.parametrize("replaced", ["layer", "sub-layer", "forward of a layer", "forward of the stack", "projection"])
def test_what_may_look_at_neighbours_is_given_rows(replaced: str) -> None:
    model = model_of()
    encoder = model.encoder
    if replaced == "layer":
        encoder.layers[0] = Shifted(encoder.layers[0])
    elif replaced == "sub-layer":
        encoder.layers[0].feed_forward = Shifted(torch.nn.Sequential(encoder.layers[0].feed_forward))
        encoder.layers[0].feed_forward.forward = lambda x, keep=None: encoder.layers[0].feed_forward.layer(x.roll(1, 1))
    elif replaced == "projection":
        encoder.layers[0].self_attention.query = torch.nn.Sequential(encoder.layers[0].self_attention.query, Rolled())
    else:
        module = encoder if "stack" in replaced else encoder.layers[0]
        original = module.forward
        module.forward = lambda x, *rest, **named: original(x.roll(1, 1), *rest, **named)
    source = SOURCE.clone()
    source[0, 2:] = 0
    expected = model(source, TARGET)
    model.pack_from = 0
    torch.testing.assert_close(model(source, TARGET), expected, rtol=0, atol=0)


class Rolled(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.roll(1, 1)


def test_attention_finds_its_heads_in_what_its_projections_give() -> None:
    """As tensor parallelism leaves them: each process has some of the heads."""
    model = model_of().encoder.layers[0].self_attention
    expected, halves = model(x := torch.randn(2, 5, 32), x), []
    size = model.query.out_features // 2
    for half in range(2):
        part = copy.deepcopy(model)
        chosen = slice(half * size, (half + 1) * size)
        for name in ("query", "key", "value"):
            linear = getattr(part, name)
            linear.weight = torch.nn.Parameter(linear.weight[chosen])
        part.output.weight = torch.nn.Parameter(part.output.weight[:, chosen])
        halves.append(part(x, x))
    close(halves[0] + halves[1], expected)


def test_a_hook_on_the_dropout_of_the_weights_is_given_them() -> None:
    model, given = model_of(), []
    expected = model(SOURCE, TARGET)
    weights_of = model.states(SOURCE, TARGET)["encoder"]["self_attention_lbhts"][0]
    model.encoder.layers[0].self_attention.weights_dropout.register_forward_hook(lambda _, args, output: given.append(args[0]))
    close(model(SOURCE, TARGET), expected)
    close(given[0], weights_of)
    model.encoder.layers[0].self_attention.weights_dropout = torch.nn.Dropout(1.0)
    assert not torch.allclose(model(SOURCE, TARGET), expected)


def test_nested_tensors_are_refused() -> None:
    rows = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4])], layout=torch.jagged)
    with pytest.raises(ValueError, match="ids must be a dense tensor, whose shorter rows are padded; got a nested one"):
        model_of()(rows, TARGET)


def test_a_library_may_write_to_the_config_of_a_model_and_its_fields_are_fixed() -> None:
    model = model_of()
    model.config.use_cache = False
    assert model.config == CONFIG
    assert (model.config == CONFIG) is True
    assert hash(model.config) == hash(CONFIG)
    assert not hasattr(CONFIG, "use_cache")
    assert not hasattr(Transformer(model.config).config, "use_cache")
    with pytest.raises(dataclasses.FrozenInstanceError, match="heads"):
        model.config.heads = 3


def test_an_exported_graph_refuses_a_negative_id() -> None:
    graph = torch.export.export(model_of(), (SOURCE, TARGET)).module()
    looked_up = [node for node in graph.graph.nodes if node.target is torch.ops.aten.embedding.default]
    for node in looked_up[:2]:
        assert node.args[1].target.overloadpacket is torch.ops.aten.where  # of a negative id, the id after the last
    for bad in (-1, 19):
        with pytest.raises(IndexError, match="index out of range"):
            graph(SOURCE.masked_fill(SOURCE == 1, bad), TARGET)


SEARCH = {"start_id": 1, "end_id": 2, "max_new_tokens": 5}


def found(model: Any) -> Any:
    return Searcher(model).greedy_search(SOURCE, SEARCH)["token_bn"].tolist()


def test_searches_use_what_libraries_make_of_a_projection() -> None:
    model = model_of()
    expected = found(model)
    pruned = copy.deepcopy(model)
    prune.l1_unstructured(pruned.decoder.layers[0].feed_forward.hidden, "weight", 1)
    pruned(SOURCE, TARGET)
    assert found(pruned) == expected
    for layer in (*model.encoder.layers, *model.decoder.layers):
        for name in ("query", "key", "value", "output"):
            setattr(layer.self_attention, name, Wrapped(getattr(layer.self_attention, name)))
        layer.feed_forward.hidden = Wrapped(layer.feed_forward.hidden)
    model.logits = Wrapped(model.logits)
    assert found(model) == expected
    assert model(SOURCE, TARGET).shape == (3, 4, 19)


class Wrapped(torch.nn.Module):
    """What has neither the weight nor the sizes of the linear layer that it calls."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class Scaled(torch.nn.Parameter):
    """A parameter whose class computes in its own way, as those of quantised models do."""


def test_a_projection_whose_weight_is_of_another_class_is_not_fused() -> None:
    model = model_of()
    hidden = model.decoder.layers[0].feed_forward.hidden
    hidden.weight = Scaled(hidden.weight.detach())
    kept = Searcher(model).model.decoder.layers[0].feed_forward
    assert type(kept.hidden.weight) is Scaled
    assert type(kept.output) is not torch.nn.Linear


def test_a_searcher_is_moved_as_a_whole() -> None:
    searcher = Searcher(model_of())
    assert searcher.to("cpu").greedy_search(SOURCE, SEARCH)["token_bn"].tolist() == found(model_of())
    moved = searcher.to("meta").model
    tensors = [
        x for part in moved.modules() for x in (*part.parameters(recurse=False), *vars(part).values()) if isinstance(x, torch.Tensor)
    ]
    assert {x.device.type for x in tensors} == {"meta"}
    with pytest.raises(ValueError, match="int8 needs a CPU"):
        Searcher(model_of(), "int8").to("meta")


def encoder(**changes: Any) -> Any:
    sizes = {"source_vocabulary": 19, "target_vocabulary": 19, "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4}
    sizes |= {"value_size": 4, "feed_forward_width": 8, "encoder_layers": 1, "max_positions": 16, "masked_language_head": False}
    return model_of(preset("bert_base", **sizes | changes))


def test_an_encoder_alone_is_called_as_any_module() -> None:
    for model, expected in (
        (encoder(classes=3), Transformer.classify),
        (encoder(masked_language_head=True), Transformer.masked_language_logits),
        (encoder(), Transformer.encode),
    ):
        wanted = expected(model, SOURCE)
        assert torch.equal(model(SOURCE), wanted)
        model.pack_from = 0
        padded = SOURCE.masked_fill(SOURCE > 9, 0)
        close(model(**packed_arguments(model)(source=padded)), expected(model, padded))
    close(torch.export.export(model, (SOURCE,)).module()(SOURCE), wanted)
    close(torch.compile(model, backend="eager", fullgraph=True)(SOURCE), wanted)
    with pytest.raises(ValueError, match="two heads is called by `classify` or `masked_language_logits`"):
        encoder(classes=3, masked_language_head=True)(SOURCE)
    with pytest.raises(ValueError, match="an encoder alone takes no target"):
        encoder()(SOURCE, TARGET)
    with pytest.raises(ValueError, match="a decoder needs a target; got None"):
        model_of()(SOURCE)


def test_importing_the_trainer_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    spec: Any = importlib.util.spec_from_file_location("impl_torch.training_again", training.__file__)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_steps_of_trainers_in_two_threads_wait_for_each_other() -> None:
    """torch has one deterministic mode: a step that ends would leave another one without it, or leave it on for ever."""
    inside, both = [], []

    def step() -> None:
        with training._PROCESS, training._deterministic():
            inside.append(1)
            time.sleep(0.02)
            both.append(len(inside))
            assert torch.are_deterministic_algorithms_enabled()
            inside.pop()

    threads = [threading.Thread(target=step) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert both == [1, 1, 1]
    assert not torch.are_deterministic_algorithms_enabled()
