"""The decoding of the PyTorch port: equal to the truth, one graph for all lengths, and weights as the searches read them."""

from typing import Any

import numpy as np
import pytest

from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy import decoding as truth
from reference_numpy import sampling as truth_sampling
from reference_numpy import transformer as truth_transformer

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounter  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

from impl_torch import cache, sampling, weights  # noqa: E402
from impl_torch.decoding import Searcher  # noqa: E402
from impl_torch.fast import beams  # noqa: E402
from impl_torch.fast.fused import fused, pack  # noqa: E402
from impl_torch.fast.projection import FusedProjection  # noqa: E402
from impl_torch.transformer import Transformer  # noqa: E402

START, END, PADDING, VOCABULARY = 1, 2, 0, 13
OPTIONS: dict[str, Any] = {"start_id": START, "end_id": END, "max_new_tokens": 6}
CONFIGS: dict[str, dict[str, Any]] = {
    "post_norm": {},
    "pre_norm": {"norm_placement": "pre", "final_norm": True, "activation": "gelu_erf"},
    "grouped_heads": {"key_value_heads": 2, "key_size": 5, "value_size": 3},
    "untied": {"share_embeddings": False, "tie_logits": False, "source_vocabulary": 11},
    "biases": {"attention_bias": True, "output_bias": True, "scale_embedding": False},
    "no_padding_id": {"padding_id": None},
}
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-11}


def config_of(name: str = "post_norm") -> TransformerConfig:
    sizes = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY, "model_width": 12, "feed_forward_width": 8}
    return preset("tiny", **(sizes | {"encoder_layers": 1} | CONFIGS[name]))


def arrays_of(config: TransformerConfig, seed: int = 3) -> dict[str, np.ndarray]:
    """Larger than at the beginning of training, so that what is read decides what follows."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape) * 0.6 for name, shape in parameters.shapes(config).items()}


def model_of(config: TransformerConfig, arrays: dict[str, np.ndarray], dtype: Any = np.float64) -> Any:
    model = Transformer(config).to(getattr(torch, np.dtype(dtype).name))
    weights.load(model, {name: array.astype(dtype) for name, array in arrays.items()}, config)
    return model


def source_of(config: TransformerConfig, batch: int = 3, length: int = 5) -> np.ndarray:
    source = np.random.default_rng(5).integers(3, config.source_vocabulary, (batch, length))
    source[0, 2:] = PADDING
    source[-1, :1] = PADDING
    return source


def equal(found: dict[str, Any], expected: dict[str, np.ndarray], **close: Any) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == getattr(torch, array.dtype.name)
        np.testing.assert_allclose(found[name].numpy(), array, **(close or CLOSE), err_msg=name)


@pytest.mark.parametrize("splits", [(7,), (1,) * 7, (3, 1, 1, 2)])
@pytest.mark.parametrize("name", CONFIGS)
def test_any_split_into_steps_gives_the_full_run(name: str, splits: tuple[int, ...]) -> None:
    config = config_of(name)
    arrays, source = arrays_of(config), source_of(config)
    tree, model = parameters.nest(arrays), fused(model_of(config, arrays))
    target = np.random.default_rng(6).integers(3, config.target_vocabulary, (3, 7))
    target[0, 4:6], target[1, :2], target[2] = PADDING, PADDING, PADDING  # a row that has ended, a left-padded one, an empty one
    source_mask = source != PADDING
    source_mask[1] = False
    memory = truth_transformer.encode(tree, config, source)
    given = [torch.from_numpy(array) for array in (target, memory, source_mask)]
    for mask in (None, target % 3 > 0):
        expected = truth_transformer.decode(tree, config, target, memory, source_mask, mask)
        target_mask = None if mask is None else torch.from_numpy(mask)
        found = cache.decode_in_steps(model, given[0], given[1], splits, given[2], target_mask)
        np.testing.assert_allclose(found.numpy(), expected, **CLOSE)


SEARCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "least_length": {"min_new_tokens": 3},
    "repetition": {"repetition_penalty": 1.7},
    "ngrams": {"no_repeat_ngram": 2},
    "all": {"min_new_tokens": 2, "repetition_penalty": 0.8, "no_repeat_ngram": 1, "max_new_tokens": 12},
    "start_is_end": {"start_id": END},
}
PREFIX = np.array([[PADDING, PADDING, START], [START, 4, 5], [PADDING, START, 6]])


@pytest.mark.parametrize("prefix", [None, PREFIX], ids=["no_prefix", "prefix"])
@pytest.mark.parametrize("options", SEARCHES)
@pytest.mark.parametrize("name", CONFIGS)
def test_searches_equal_those_of_the_truth(name: str, options: str, prefix: np.ndarray | None) -> None:
    config, strategy = config_of(name), OPTIONS | SEARCHES[options]
    for seed in range(1 if prefix is None else 2):
        arrays, source = arrays_of(config, seed), source_of(config)
        tree, searcher = parameters.nest(arrays), Searcher(model_of(config, arrays), compiled=False)
        given = torch.from_numpy(source), None if prefix is None else torch.from_numpy(prefix)
        equal(searcher.greedy_search(given[0], strategy, given[1]), truth.greedy_search(tree, config, source, strategy, prefix))
        for changes in ({"beam_size": 1}, {"beam_size": 3, "n_best": 2}, {"beam_size": 5, "n_best": 5, "alpha": 2.0, "early_stop": True}):
            expected = truth.beam_search(tree, config, source, strategy | changes, prefix)
            equal(searcher.beam_search(given[0], strategy | changes, given[1]), expected)
        uniform = np.random.default_rng(seed).random((3, strategy["max_new_tokens"]))
        for changes in ({"temperature": 0.7, "top_k": 4}, {"top_p": 0.6}, {"temperature": 0.0}):
            expected = truth.sample(tree, config, source, strategy | changes, uniform, prefix)
            equal(searcher.sample(given[0], strategy | changes, torch.from_numpy(uniform), given[1]), expected)


def test_sampling_equals_the_truth_on_ties_and_padding() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(-3, 4, (4, 9)).astype(np.float64)
    scores[1, 3:6], scores[2] = -np.inf, 0.0
    token, mask = rng.integers(0, 9, (4, 8)), rng.random((4, 8)) < 0.8
    token[3] = [5, 6, 7, 5, 6, 8, 5, 6]
    mask[3] = True
    given = [torch.from_numpy(array) for array in (scores, token, mask)]
    for options in ((1.3, 0), (0.5, 1), (1.0, 2), (1.0, 3), (2.0, 9), (1.0, 0)):
        for wide in (None, mask):
            found = sampling.penalise(given[0], given[1], *options, None if wide is None else given[2])
            np.testing.assert_array_equal(found.numpy(), truth_sampling.penalise(scores, token, *options, wide))
    for kept in ((1.0, 3, 1.0), (0.5, 0, 0.7), (2.0, 4, 0.5), (1.0, 0, 1e-9), (1.0, 20, 1.0), (1.0, 0, 1.0)):
        found, expected = sampling.truncate(given[0], *kept), truth_sampling.truncate(scores, *kept)
        np.testing.assert_array_equal(found.numpy(), expected)
        uniform = rng.random(4)
        drawn = sampling.draw(found, torch.from_numpy(uniform))
        assert drawn.dtype == torch.int64
        np.testing.assert_array_equal(drawn.numpy(), truth_sampling.draw(expected, uniform))
    last = torch.tensor([[0.0, 0.0, -torch.inf]], dtype=torch.float32)
    assert sampling.draw(last, torch.tensor([1.0])).tolist() == [1]


def test_equal_beams_go_to_the_lower_token_and_then_to_the_better_beam() -> None:
    total = torch.full((1, 2, 7), -9.0)
    total[0, 0, 6] = total[0, 1, 5] = total[0, 0, 5] = total[0, 1, 1] = -2.0
    values, tokens, parents = beams.best(total, 3)
    assert (values.tolist(), tokens.tolist(), parents.tolist()) == ([[-2.0] * 3], [[1, 5, 5]], [[1, 0, 1]])


def test_equal_hypotheses_go_to_the_lower_tokens() -> None:
    token, parent = np.array([[5, 4], [3, 3]]), np.array([[0, 0], [1, 0]])
    score = np.array([[-np.inf, -np.inf], [-1.0, -1.0], [-1.0, -2.0]])
    assert [tokens for _, tokens in beams.hypotheses(token, parent, score, 3)] == [[4], [4, 3], [5]]
    assert [tokens for _, tokens in beams.hypotheses(token, parent, score, 1)] == [[4]]


def test_a_row_takes_its_past_with_it() -> None:
    config = config_of()
    arrays, source, row = arrays_of(config), source_of(config), np.array([2, 0, 0])
    model = model_of(config, arrays).eval()
    memory = torch.from_numpy(truth_transformer.encode(parameters.nest(arrays), config, source))
    first, then = np.array([[3, 4], [5, 6], [4, 4]]), np.array([[6], [5], [3]])
    started = cache.start_cache(model, memory, torch.from_numpy(source != PADDING), length=3)
    with torch.inference_mode():
        _, read = cache.decode_step(model, torch.from_numpy(first), started)
        logits, _ = cache.decode_step(model, torch.from_numpy(then), cache.reorder(read, torch.from_numpy(row)))
    whole = np.concatenate([first[row], then], axis=1)
    expected = truth_transformer.transformer(parameters.nest(arrays), config, source[row], whole)[:, 2:]
    np.testing.assert_allclose(logits.numpy(), expected, **CLOSE)


def test_nothing_may_follow_and_the_answer_ends() -> None:
    config = config_of()
    arrays, source = arrays_of(config), source_of(config)
    prefix, options = np.broadcast_to(np.arange(1, VOCABULARY), (3, VOCABULARY - 1)).copy(), OPTIONS | {"no_repeat_ngram": 1}
    prefix[:, 1] = 3
    for changes in ({}, {"min_new_tokens": 2}):
        expected = truth.greedy_search(parameters.nest(arrays), config, source, options | changes, prefix)
        searcher = Searcher(model_of(config, arrays), compiled=False)
        equal(searcher.greedy_search(torch.from_numpy(source), options | changes, torch.from_numpy(prefix)), expected)


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("bfloat16", 0.05)])
@pytest.mark.parametrize("rows", [3, 9])
def test_packed_kernels_read_what_plain_ones_do(rows: int, dtype: str, close: float) -> None:
    config = config_of("biases")
    arrays = arrays_of(config)
    model = fused(model_of(config, arrays, np.float32), getattr(torch, dtype))
    kernel = model.decoder.layers[0].self_attention.query_key_value
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((rows, 1, config.model_width))).to(getattr(torch, dtype))
    plain = kernel(x)
    pack(model, rows)
    assert kernel.packed is not None
    torch.testing.assert_close(kernel(x), plain, rtol=close, atol=close)
    torch.testing.assert_close(kernel(x[1:]), plain[1:], rtol=close, atol=close)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fused_kernels_are_those_of_the_model_side_by_side_and_a_snapshot(dtype: Any) -> None:
    config = config_of("grouped_heads")
    arrays = arrays_of(config)
    model = model_of(config, arrays, dtype)
    searcher, source = Searcher(model, compiled=False), torch.from_numpy(source_of(config))
    layer, given = searcher.model.decoder.layers[1], model.decoder.layers[1]
    whole = [given.self_attention.query.weight, given.self_attention.key.weight, given.self_attention.value.weight]
    assert torch.equal(layer.self_attention.query_key_value.weight, torch.cat(whole))
    whole = [given.cross_attention.key.weight, given.cross_attention.value.weight]
    assert torch.equal(layer.cross_attention.key_value.weight, torch.cat(whole))
    before = searcher.greedy_search(source, OPTIONS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(searcher.greedy_search(source, OPTIONS)["log_p_bn"], before["log_p_bn"])


class LowRank(torch.nn.Module):
    """What users put in the place of a linear layer."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = torch.nn.Linear(base.in_features, 2, bias=False), torch.nn.Linear(2, base.out_features, bias=False)

    in_features = property(lambda self: self.base.in_features)

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
    [
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
    ],
)
def test_a_search_uses_what_stands_in_for_a_part(path: str, change: str) -> None:
    config = config_of()
    model, source = model_of(config, arrays_of(config)), torch.from_numpy(source_of(config))
    _replaced(model, path, change)
    model.double().eval()
    found = Searcher(model).greedy_search(source, OPTIONS | {"min_new_tokens": 5})
    token_bn = found["token_bn"]
    with torch.no_grad():
        logits_btv = model(source, torch.cat([torch.full((3, 1), START), token_bn[:, :-1]], dim=1))
    logits_btv[..., [PADDING, START]] = -torch.inf
    log_p_bn = logits_btv.log_softmax(-1).gather(2, token_bn[..., None])[..., 0]
    torch.testing.assert_close(found["log_p_bn"], log_p_bn, **CLOSE)


@pytest.mark.parametrize("path", ["", "decoder", "decoder.layers.1", "decoder.layers.0.cross_attention"])
def test_what_steps_do_not_call_may_not_be_changed(path: str) -> None:
    config = config_of()
    source, options = torch.from_numpy(source_of(config)), OPTIONS
    for change in (_hook, _own_forward):
        model = model_of(config, arrays_of(config))
        change(model.get_submodule(path))
        with pytest.raises(ValueError, match=rf"calls no forward of {path or 'model'}, which must have no hooks"):
            Searcher(model).greedy_search(source, options)
    model = model_of(config, arrays_of(config))
    model.decoder.layers[0].cross_attention = LowRank(model.decoder.layers[0].cross_attention.query)
    with pytest.raises(ValueError, match=r"decoder\.layers\.0\.cross_attention to be a MultiHeadAttention .*; got LowRank"):
        Searcher(model).greedy_search(source, options)


def test_searches_under_autocast() -> None:
    config = config_of("biases")
    arrays, source = arrays_of(config), torch.from_numpy(source_of(config))
    searcher = Searcher(model_of(config, arrays, np.float32))
    plain = searcher.greedy_search(source, OPTIONS)
    with torch.autocast("cpu", torch.bfloat16):
        found = searcher.greedy_search(source, OPTIONS)
    assert found["log_p_bn"].dtype == torch.float32
    torch.testing.assert_close(found["log_p_bn"][:, 0], plain["log_p_bn"][:, 0], rtol=0, atol=0.1)


def test_weights_in_bfloat16_on_request() -> None:
    config = config_of("biases")
    arrays, source = arrays_of(config), source_of(config)
    rounded = {name: torch.from_numpy(array).bfloat16() for name, array in arrays.items()}
    searcher = Searcher(model_of(config, arrays), torch.bfloat16, compiled=False)
    assert {parameter.dtype for parameter in searcher.model.parameters()} == {torch.bfloat16}
    assert torch.equal(searcher.model.target_embedding.table, rounded["source_embedding.table"])
    expected = truth.greedy_search(
        parameters.nest({name: weights.to_numpy(value) for name, value in rounded.items()}), config, source, OPTIONS
    )
    found = searcher.greedy_search(torch.from_numpy(source), OPTIONS)
    assert found["log_p_bn"].dtype == torch.float32
    np.testing.assert_array_equal(found["token_bn"].numpy(), expected["token_bn"])
    np.testing.assert_allclose(found["log_p_bn"].numpy(), expected["log_p_bn"], atol=0.1)


def test_one_graph_serves_every_length_and_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_, traced = torch.compile, CompileCounter()
    monkeypatch.setattr(torch, "compile", lambda step, **options: compile_(step, backend=traced, **options))
    torch.compiler.reset()
    config = config_of("biases")
    for seed, length, count in ((3, 7, 6), (3, 4, 9), (4, 9, 4), (4, 3, 12), (4, 12, 3)):  # at first both lengths are 7
        arrays, source = arrays_of(config, seed), source_of(config, 3, length)
        searcher = Searcher(model_of(config, arrays), compiled=True)
        options = OPTIONS | {"max_new_tokens": count, "min_new_tokens": count - 1, "repetition_penalty": 1 + length / 9}
        expected = truth.greedy_search(parameters.nest(arrays), config, source, options)
        equal(searcher.greedy_search(torch.from_numpy(source), options), expected)
    assert traced.frame_count == 1
    searcher.beam_search(torch.from_numpy(source), options | {"beam_size": 2})
    assert traced.frame_count == 2  # another number of rows


@pytest.mark.slow
def test_compiled_searches_equal_those_of_the_truth() -> None:
    torch.compiler.reset()
    for name, search, more in (("biases", "greedy_search", {}), ("grouped_heads", "beam_search", {"beam_size": 3, "n_best": 3})):
        config = config_of(name)
        arrays, source, options = arrays_of(config), source_of(config), OPTIONS | {"min_new_tokens": 3} | more
        searcher, expected = Searcher(model_of(config, arrays), compiled=True), getattr(truth, search)
        found = getattr(searcher, search)(torch.from_numpy(source), options)
        equal(found, expected(parameters.nest(arrays), config, source, options))


@pytest.mark.slow
def test_large_kernels_are_constants_of_a_graph_for_each_searcher() -> None:
    torch.compiler.reset()
    counters.clear()
    config, source = config_of("biases").replace(model_width=64, feed_forward_width=8192), source_of(config_of("biases"), 4)
    trees = [arrays_of(config, seed) for seed in (3, 4)]
    models = [model_of(config, arrays, np.float32) for arrays in trees]
    if not fused(models[0]).logits.pack(4):
        pytest.skip("this CPU's library packs no kernels")
    searchers, eager = ([Searcher(model, compiled=compiled) for model in models] for compiled in (True, False))
    for length, count in ((5, 6), (4, 9)):
        for arrays, searcher, plain in zip(trees, searchers, eager, strict=True):
            options = OPTIONS | {"max_new_tokens": count, "min_new_tokens": count - 1}
            expected = truth.greedy_search(parameters.nest(arrays), config, source[:, :length], options)
            found, near = (each.greedy_search(torch.from_numpy(source[:, :length]), options) for each in (searcher, plain))
            np.testing.assert_array_equal(found["token_bn"].numpy(), expected["token_bn"])
            error, noise = (np.abs(one["log_p_bn"].numpy() - expected["log_p_bn"]).max() for one in (found, near))
            assert error <= 4 * noise + np.spacing(np.float32(np.abs(expected["log_p_bn"]).max()))
    assert counters["stats"]["unique_graphs"] == len(searchers)
    few, many = (_packed_products(searchers[0], torch.from_numpy(source), count) for count in (4, 7))
    kernels = sum(isinstance(module, FusedProjection) for module in searchers[0].model.modules())
    assert many - few == 3 * (kernels - config.decoder_layers)  # a step computes no keys and values of the memory


def _packed_products(searcher: Searcher, source: Any, count: int) -> int:
    with torch.profiler.profile() as seen:
        searcher.greedy_search(source, OPTIONS | {"max_new_tokens": count, "min_new_tokens": count - 1})
    return sum(event.count for event in seen.key_averages() if event.key == "mkl::_mkl_linear")


def test_a_cache_has_its_room_and_steps_need_a_model_in_evaluation() -> None:
    model, target, memory = model_of(config_of(), arrays_of(config_of())).eval(), np.full((3, 4), 4), np.zeros((3, 5, 12))
    started = cache.start_cache(model, torch.from_numpy(memory), length=3)
    with pytest.raises(ValueError, match="the cache has room for 3 tokens; got 4"):
        cache.decode_step(model, torch.from_numpy(target), started)
    with pytest.raises(ValueError, match="decoding in steps needs a model in evaluation; got one in training"):
        cache.start_cache(model.train(), torch.from_numpy(memory), length=3)


def test_copies_of_a_row_change_places_without_a_copy_of_keys() -> None:
    config = config_of()
    model = fused(model_of(config, arrays_of(config)))
    memory, row = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 5, config.model_width))), [1, 1, 0, 5, 3, 4]
    first, then = np.random.default_rng(1).integers(3, VOCABULARY, (2, 6, 2))
    with torch.inference_mode():
        _, read = cache.decode_step(model, torch.from_numpy(first), cache.start_cache(model, memory, length=4, copies=3))
        moved = cache.reorder(read, torch.tensor(row))
        logits, _ = cache.decode_step(model, torch.from_numpy(then), moved)
        whole = torch.from_numpy(np.concatenate([first[row], then], axis=1))
        alone = cache.decode_in_steps(model, whole, memory.repeat_interleave(3, dim=0), (4,))
    assert moved["layers"] is read["layers"]
    torch.testing.assert_close(logits, alone[:, 2:], rtol=1e-10, atol=1e-11)
