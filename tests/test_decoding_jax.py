"""Decoding in the JAX port: the truth's answers, few programs, fused kernels, and what is refused."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy import decoding as truth
from reference_numpy import mask as truth_mask
from reference_numpy import sampling as truth_sampling
from reference_numpy import transformer as truth_model

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import ml_dtypes  # noqa: E402

from impl_jax import cache, port, sampling, weights  # noqa: E402
from impl_jax.decoding import Searcher  # noqa: E402
from impl_jax.fast.fused import fused  # noqa: E402
from impl_jax.fast.projection import SMALL, FusedProjection  # noqa: E402
from impl_jax.fast.request import bucket  # noqa: E402

START, END, PADDING, VOCABULARY = 1, 2, 0, 11
OPTIONS: dict[str, Any] = {"start_id": START, "end_id": END, "max_new_tokens": 7}
CONFIGS: dict[str, dict[str, Any]] = {
    "post_norm": {"decoder_layers": 2},
    "pre_norm": {"norm_placement": "pre", "final_norm": True},
    "grouped_heads": {"key_value_heads": 2, "value_size": 5, "attention_bias": True},
    "untied": {"share_embeddings": False, "tie_logits": False, "output_bias": True},
    "no_padding_id": {"padding_id": None},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy_search": {"min_new_tokens": 3, "repetition_penalty": 1.5, "no_repeat_ngram": 2},
    "sample": {"temperature": 0.7, "top_k": 5, "top_p": 0.8},
    "beam_search": {"beam_size": 4, "n_best": 3, "alpha": 1.0, "no_repeat_ngram": 3},
}

# A program of each is compiled, so not every search is run on every config; the steps are the same.
LEFT_OUT = {"pre_norm": "sample", "grouped_heads": "greedy_search", "untied": "sample", "no_padding_id": "greedy_search"}


def make(dtype: Any = np.float64, seed: int = 3, **changes: Any) -> tuple[Any, Any]:
    """A model, and its parameters as the truth takes them: large, so that what is read decides what follows."""
    sizes = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY, "model_width": 12, "feed_forward_width": 8}
    config = preset("tiny", **(sizes | {"encoder_layers": 1, "decoder_layers": 1, "padding_id": PADDING} | changes))
    model = port.components["transformer"](config, dtype)
    return model, load(model, config, dtype, seed)


def load(model: Any, config: TransformerConfig, dtype: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    arrays = {name: (rng.standard_normal(shape) * 0.6).astype(dtype) for name, shape in parameters.shapes(config).items()}
    weights.load(model, arrays, config)
    return parameters.nest(arrays)


def tokens(config: TransformerConfig, length: int = 6, seed: int = 5) -> np.ndarray:
    """Rows that end, that begin late, that are full, and that are empty."""
    token = np.random.default_rng(seed).integers(3, VOCABULARY, (4, length))
    if config.padding_id is not None:
        token[0, 4:], token[1, :2], token[3] = PADDING, PADDING, PADDING
    return token


def equal(found: Any, wanted: dict[str, np.ndarray], tolerance: float = 1e-10) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        if "token" in name:
            assert_array_equal(found[name], array, err_msg=name)
        else:
            assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    """The compilations that happen meanwhile."""
    found: list[str] = []

    def listen(name: str, seconds: float, **_: Any) -> None:
        if "backend_compile" in name:
            found.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_equal_the_full_run(name: str) -> None:
    with jax.enable_x64(True):
        model, tree = make(**CONFIGS[name])
        source, target = tokens(model.config), tokens(model.config, 7, 6)
        memory, mask = truth_model.encode(tree, model.config, source), truth_mask.token_mask(source, model.config.padding_id)
        wanted = truth_model.decode(tree, model.config, target, memory, mask)
        for splits in ((2, 1, 2, 1, 1), (1,) * 7) if name == "post_norm" else ((2, 1, 2, 1, 1),):
            assert_allclose(cache.decode_in_steps(model, target, jnp.asarray(memory), splits, mask), wanted, rtol=0, atol=1e-12)


def test_steps_without_a_program_and_with_masks_of_their_own() -> None:
    with jax.enable_x64(True):
        model, tree = make()
        model.train()  # steps drop nothing, whatever the mode
        target, source_mask = np.full((2, 5), 4), np.array([[True, False, True, True], [False] * 4])
        target_mask = np.array([[False, True, True, False, True], [True] * 5])
        memory = np.random.default_rng(0).standard_normal((2, 4, 12))
        wanted = truth_model.decode(tree, model.config, target, memory, source_mask, target_mask)
        soft = np.eye(VOCABULARY)[target]
        found = cache.decode_in_steps(model, soft, jnp.asarray(memory), (3, 1, 1), source_mask, target_mask, compiled=False)
        assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_a_row_takes_its_past_with_it() -> None:
    with jax.enable_x64(True):
        model, tree = make()
        source, row = tokens(model.config), np.array([2, 0, 0, 1])
        memory, mask = jnp.asarray(truth_model.encode(tree, model.config, source)), truth_mask.token_mask(source, PADDING)
        first, then = np.array([[3, 4], [5, 6], [4, 4], [7, 8]]), np.array([[6], [5], [3], [9]])
        step = functools.partial(jax.jit(cache.decode_step), fused(model))
        _, read = step(first, cache.start_cache(model, memory, jnp.asarray(mask), length=3))
        with pytest.raises(ValueError, match="the cache must have room for 5 tokens; got length=3"):
            cache.decode_step(model, np.concatenate([then, then, then], axis=1), read)
        logits, _ = step(then, cache.reorder(read, row))
        wanted = truth_model.transformer(tree, model.config, source[row], np.concatenate([first[row], then], axis=1))
        assert_allclose(logits, wanted[:, 2:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_searches_equal_the_truth(name: str) -> None:
    with jax.enable_x64(True):
        model, _ = make(**CONFIGS[name])
        config, source, uniform = model.config, tokens(model.config), np.random.default_rng(0).random((4, 7))
        prefixes = [None] if name == "untied" else [np.array([[4, 3, START], [START, 4, 5], [6, START, 6], [3, 3, 3]])]
        if name == "post_norm":
            prefixes.append(np.array([[PADDING, PADDING, START], [START, 4, 5], [PADDING, START, 6], [3, 3, 3]]))
        for seed in range(3):
            tree = load(model, config, np.float64, seed)
            searcher = Searcher(model)
            for search, options in SEARCHES.items():
                if search == LEFT_OUT.get(name):
                    continue
                more = {"uniform_bn": uniform} if search == "sample" else {}
                for prefix in prefixes:
                    arguments = {"source": source, "strategy": OPTIONS | options, "prefix": prefix, **more}
                    equal(getattr(searcher, search)(**arguments), getattr(truth, search)(tree, config, **arguments))


def test_a_search_without_a_program_equals_the_truth_too() -> None:
    with jax.enable_x64(True):
        model, tree = make(norm_placement="pre")
        searcher, source = Searcher(model, compiled=False), tokens(model.config)
        mask = np.random.default_rng(1).random(source.shape) < 0.7
        arguments = {"source": source, "strategy": OPTIONS | {"max_new_tokens": 2}, "source_mask_bs": mask}
        equal(searcher.greedy_search(**arguments), truth.greedy_search(tree, model.config, **arguments))


def test_nothing_is_compiled_for_other_lengths_and_values() -> None:
    model, _ = make(np.float32)
    searcher = Searcher(model)
    prefix, other = np.array([[3, START], [START, 4]]), np.array([[5, 3, 4], [START, 3, 6]])
    uniform = np.random.default_rng(0).random((2, 7))

    def ask(source: np.ndarray, strategy: dict[str, Any], prefix: np.ndarray | None) -> None:
        searcher.greedy_search(source, strategy, prefix)
        searcher.sample(source, strategy, uniform[:, : strategy["max_new_tokens"]], prefix)
        searcher.beam_search(source, strategy | {"beam_size": 2}, prefix)

    options = OPTIONS | {"repetition_penalty": 1.2, "temperature": 0.9, "top_p": 0.8, "alpha": 0.5}
    others = {"max_new_tokens": 5, "min_new_tokens": 2, "repetition_penalty": 0.7, "temperature": 2.0, "top_p": 0.5, "alpha": 1.0}
    ask(np.full((2, 5), 4), options, prefix)
    with counted() as compilations:
        ask(np.full((2, 9), 7), options | others | {"end_id": 3, "early_stop": True}, other)
        load(model, model.config, np.float32, 1)
        Searcher(model).greedy_search(np.full((2, 5), 4), options, prefix)
    assert not compilations
    with counted() as compilations:
        searcher.greedy_search(np.full((2, bucket(5) + 1), 4), options, prefix)
    assert len(compilations) == 1


def test_lengths_fall_into_few_buckets() -> None:
    assert [bucket(length) for length in (1, 16, 17, 64, 65, 128, 129)] == [16, 16, 32, 64, 128, 128, 192]


def test_the_snapshot_has_fused_kernels_and_later_changes_do_not_reach_it() -> None:
    model, tree = make(np.float32, key_value_heads=2, value_size=5, attention_bias=True)
    searcher, source = Searcher(model), tokens(model.config)
    own, cross = (getattr(fused(model).decoder.layers[0], name) for name in ("self_attention", "cross_attention"))
    layer = tree["decoder"]["layers"]["0"]
    for projection, attention, names in (
        (own.query_key_value, "self_attention", ("query", "key", "value")),
        (cross.key_value, "cross_attention", ("key", "value")),
    ):
        kernel = np.concatenate([layer[attention][name]["kernel"].reshape(12, -1) for name in names], axis=1)
        assert_array_equal(projection.kernel[...], kernel.T if projection.transposed else kernel)
        assert_array_equal(projection.bias[...], np.concatenate([layer[attention][name]["bias"].reshape(-1) for name in names]))
    before = searcher.greedy_search(source, OPTIONS)
    load(model, model.config, np.float32, 9)
    assert_array_equal(searcher.greedy_search(source, OPTIONS)["log_p_bn"], before["log_p_bn"])


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_that_are_not_small_lie_the_other_way(tied: bool) -> None:
    with jax.enable_x64(True):
        wide = SMALL // (12 * 8) + 1
        sizes = {"feed_forward_width": wide, "source_vocabulary": wide, "target_vocabulary": wide}
        model, tree = make(tie_logits=tied, share_embeddings=tied, **sizes)
        copy, searcher, source = fused(model), Searcher(model), tokens(model.config)
        assert copy.decoder.layers[0].feed_forward.hidden.transposed
        assert isinstance(copy.logits, FusedProjection) is not tied
        equal(searcher.greedy_search(source, OPTIONS), truth.greedy_search(tree, model.config, source, OPTIONS))


def test_bfloat16_weights_are_those_of_the_truth_in_bfloat16() -> None:
    model, tree = make(np.float32)
    searcher, source = Searcher(model, dtype=jnp.bfloat16), tokens(model.config)
    leaves = jax.tree.leaves(fused(model, jnp.bfloat16))
    assert {leaf.dtype for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)} == {jnp.dtype(jnp.bfloat16)}
    assert model.source_embedding.table.dtype == jnp.float32
    half = parameters.nest({name: array.astype(ml_dtypes.bfloat16) for name, array in parameters.flatten(tree).items()})
    options = OPTIONS | {"max_new_tokens": 1}
    found, wanted = searcher.greedy_search(source, options), truth.greedy_search(half, model.config, source, options)
    assert found["log_p_bn"].dtype == np.float32
    assert_allclose(found["log_p_bn"], wanted["log_p_bn"], rtol=0, atol=0.1)
    assert_allclose(found["log_p_bn"], truth.greedy_search(tree, model.config, source, options)["log_p_bn"], rtol=0, atol=0.2)


def test_penalties_cut_and_draw_equal_the_truth() -> None:
    rng = np.random.default_rng(0)
    scores, token, mask = rng.integers(-3, 4, (6, 9)).astype(np.float32), rng.integers(0, 9, (6, 8)), rng.random((6, 8)) < 0.8
    for size in (1, 3):
        for real in (None, mask):
            wanted = truth_sampling.penalise(scores, token % 3, 1.7, size, real)
            assert_array_equal(sampling.penalise(jnp.asarray(scores), token % 3, 1.7, size, real), wanted)
    assert_array_equal(sampling.penalise(jnp.asarray(scores), token[:, :2], 1.7, 3), truth_sampling.penalise(scores, token[:, :2], 1.7, 3))
    scores[0, :2] = 0.0, -0.0
    for options in ((1.0, 3, 1.0), (0.5, 0, 0.61), (2.0, 5, 0.73), (0.8, 99, 1.0)):
        assert_allclose(sampling.truncate(jnp.asarray(scores), *options), truth_sampling.truncate(scores, *options), rtol=1e-6)
    uniform = rng.random(6).astype(np.float32)
    assert_array_equal(sampling.draw(jnp.asarray(scores), uniform), truth_sampling.draw(scores, uniform))
    certain = jnp.asarray([[-np.inf, 3.0, -np.inf]], jnp.float32)
    assert_array_equal(sampling.draw(certain, jnp.ones(1)), [1])
