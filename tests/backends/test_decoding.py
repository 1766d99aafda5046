"""Decoding in each port, beyond conformance cases: few graphs, weight snapshots, caches whose rows move."""

from collections.abc import Callable
from typing import Any

import flat
import numpy as np
import pytest
from backends import PORTS, Backend, random_parameters
from kinds import conformance

from reference_numpy import TransformerConfig, decoding, parameters, preset, sampling, transformer
from rosettaformer.judge.case import numpy_dtype

START, END, PADDING, VOCABULARY = 1, 2, 0, 11
OPTIONS: dict[str, Any] = {"start_id": START, "end_id": END, "max_new_tokens": 5}
CONFIG = preset(
    "tiny", source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY, model_width=12, heads=4, key_value_heads=2, key_size=3,
    value_size=5, feed_forward_width=7, encoder_layers=1, decoder_layers=1, attention_bias=True, output_bias=True,
    query_key_value_clip=0.5,
)  # fmt: skip
PREFIX = np.array([[PADDING, PADDING, START], [START, 4, 5], [PADDING, START, 6]])
PENALTIES = {"repetition_penalty": 1.5, "no_repeat_ngram": 2, "min_new_tokens": 3}
DRAWN = {"temperature": 1.4, "top_k": 6, "top_p": 0.8}
BEAMS = {"beam_size": 3, "n_best": 2}
ALONE = preset(
    "gpt2_small", source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY, model_width=12, heads=3, key_value_heads=3, key_size=4,
    value_size=4, feed_forward_width=8, decoder_layers=1, max_positions=9, dropout_rate=0.0, attention_dropout_rate=0.0,
)  # fmt: skip
PROMPTS: dict[str, Any] = {
    "prefix": np.array([[7, 7, 5, 6], [3, 4, 5, 6], [7, 7, 7, 9]]),
    "prefix_mask_bp": np.array([[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]], bool),
}


def sources(length: int = 4, seed: int = 5, rows: int = 3) -> np.ndarray:
    source = np.random.default_rng(seed).integers(3, VOCABULARY, (rows, length))
    source[0, 2:] = source[-1, :1] = PADDING
    return source


def searcher_of(backend: Backend, arrays: dict[str, np.ndarray], config: TransformerConfig = CONFIG, **settings: Any) -> Any:
    return backend.part("decoding").Searcher(backend.loaded(config, arrays), **({"compiled": backend.name == "jax"} | settings))


def found(backend: Backend, searcher: Any, search: str, *arrays: np.ndarray | None, **options: Any) -> dict[str, np.ndarray]:
    """arrays: inputs of a search in addition to its strategy: the source, for `sample` the uniform numbers, then a prefix and its mask."""
    source, *more = (None if array is None else backend.weights.from_numpy(array) for array in arrays)
    of_prefix = {"prefix_mask_bp": more.pop()} if arrays[-1] is not None and arrays[-1].dtype == bool else {}
    return backend.arrays(getattr(searcher, search)(source, OPTIONS | options, *more, **of_prefix))


def close(answer: dict[str, np.ndarray], expected: dict[str, np.ndarray], atol: float = 1e-10) -> None:
    assert list(answer) == list(expected)
    for name, array in expected.items():
        assert answer[name].dtype == array.dtype or array.dtype.kind == "i"  # without 64-bit types JAX has int32
        np.testing.assert_allclose(answer[name], array, rtol=0, atol=0 if array.dtype.kind == "i" else atol, err_msg=name)


def searched_alike(backend: Backend, searcher: Any, arrays: dict[str, np.ndarray], length: int, limit: int, **options: Any) -> None:
    """Compares sampling and beam search, which exercise more than greedy search, with the reference."""
    tree, source, uniform = parameters.nest(arrays), sources(length, length), np.random.default_rng(1).random((3, limit))
    for search, given, more in (
        ("sample", (source, uniform, PREFIX), DRAWN),
        ("beam_search", (source, PREFIX), BEAMS),
    ):
        chosen = OPTIONS | PENALTIES | {"max_new_tokens": limit} | more | options
        expected = getattr(decoding, search)(tree, CONFIG, source, chosen, *given[1:])
        close(found(backend, searcher, search, *given, **chosen), expected)


@pytest.fixture
def graphs(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that counts the compiled graphs of a searcher."""
    if backend.name != "torch":
        return lambda searcher: searcher.graphs
    program = backend.part("programs.program")
    names: set[str] = set()

    def loaded(exported: Any, name: str) -> Any:
        names.add(name)
        module = exported.module()
        return lambda inputs: [*module(inputs)]

    monkeypatch.setattr(program, "loaded", loaded)
    return lambda searcher: len(names)


@pytest.mark.parametrize("backend", [conformance("torch"), conformance("tf"), "jax"], indirect=True)
def test_graphs_serve_other_lengths_other_numbers_and_other_weights(backend: Backend, graphs: Callable[[Any], int]) -> None:
    arrays, others = (random_parameters(CONFIG, seed=seed) for seed in (3, 4))
    with backend.wide():
        searcher = searcher_of(backend, arrays, compiled=True)
        searched_alike(backend, searcher, arrays, 4, 5)
        before = graphs(searcher)
        assert before
        searched_alike(backend, searcher, arrays, 9, 7, end_id=3, alpha=2.0, repetition_penalty=0.7, min_new_tokens=2)
        if hasattr(searcher, "refresh"):
            searcher.refresh(backend.loaded(CONFIG, others))
        else:
            searcher = searcher_of(backend, others, compiled=True)
        searched_alike(backend, searcher, others, 16, 12, end_id=4, early_stop=True, temperature=0.9)
        assert graphs(searcher) == before
        found(backend, searcher, "beam_search", sources(17), PREFIX, **PENALTIES, **BEAMS)
        assert graphs(searcher) == before + (backend.name != "torch")  # torch's graphs serve every length, the others' 16


@pytest.mark.parametrize("start", [conformance("first_token"), "row"])
@pytest.mark.parametrize(
    ("backend", "compiled"),
    [*((port, None) for port in PORTS), conformance("tf", True), conformance("torch", True)],
    indirect=["backend"],
)
def test_searches_of_prompts_of_different_lengths_are_the_reference_s(backend: Backend, start: str, compiled: bool | None) -> None:
    """Prompts are padded to the lengths of graphs; no position may count that padding. Its id is the first token of the answer: if it
    counted as used, it could not occur again.
    """
    config = ALONE.replace(position_start=start, position_offset=2, embedding_norm=True)
    arrays, options = random_parameters(config), {"start_id": None, "no_repeat_ngram": 1, "repetition_penalty": 1.2}
    tree = parameters.nest(arrays)
    first_b = flat.greedy_search(tree, config, None, OPTIONS | options, **PROMPTS)["token_bn"][:, :1]
    prompts = PROMPTS | {"prefix": np.where(PROMPTS["prefix_mask_bp"], PROMPTS["prefix"], first_b)}
    with backend.wide():
        searcher = searcher_of(backend, arrays, config, **({} if compiled is None else {"compiled": compiled}))
        for search, more in (("greedy_search", {}), ("beam_search", BEAMS)):
            expected = getattr(flat, search)(tree, config, None, OPTIONS | options | more, **prompts)
            close(found(backend, searcher, search, None, prompts["prefix"], prompts["prefix_mask_bp"], **options, **more), expected)


def test_an_answer_that_outgrows_the_positions_is_an_error(backend: Backend) -> None:
    searcher, options = searcher_of(backend, random_parameters(ALONE, "float32"), ALONE), {"start_id": None, "max_new_tokens": 7}
    with pytest.raises(ValueError, match=r"serves 9.*10"):
        found(backend, searcher, "greedy_search", None, *PROMPTS.values(), **options, min_new_tokens=6)


@pytest.mark.conformance
def test_the_other_mode_gives_the_same_answers(backend: Backend) -> None:
    """Compiled where the conformance cases are eager, and vice versa."""
    arrays = random_parameters(CONFIG)
    with backend.wide():
        searched_alike(backend, searcher_of(backend, arrays, compiled=backend.name != "jax"), arrays, 5, 6)


def test_a_snapshot_has_the_weights_of_its_time_and_drops_nothing(backend: Backend) -> None:
    config = CONFIG.replace(dropout_rate=0.5)
    arrays, others = (random_parameters(config, "float32", seed) for seed in (3, 4))
    model = backend.loaded(config, arrays)
    if backend.name != "tf":
        model.train()
    searcher = backend.part("decoding").Searcher(model, compiled=backend.name == "jax")
    expected = decoding.greedy_search(parameters.nest(arrays), config, sources(), OPTIONS)
    for _ in range(2):
        close(found(backend, searcher, "greedy_search", sources()), expected, atol=1e-5)
        backend.weights.load(model, others, config)


@pytest.mark.parametrize("backend", ["torch", "tf", conformance("jax")], indirect=True)
def test_a_row_of_a_cache_takes_its_past_with_it_and_projections_of_one_input_are_one_product(backend: Backend) -> None:
    arrays, x = random_parameters(CONFIG, "float32"), np.random.default_rng(0).standard_normal((2, 3, 12)).astype(np.float32)
    layer = backend.part("programs.fused").fused(backend.loaded(CONFIG, arrays)).decoder.layers[0]
    for attention, projection, names in (
        ("self_attention", layer.self_attention.query_key_value, ("query", "key", "value")),
        ("cross_attention", layer.cross_attention.key_value, ("key", "value")),
    ):
        parts = [f"decoder.layers.0.{attention}.{name}" for name in names]
        expected = [x @ arrays[f"{part}.kernel"].reshape(12, -1) + arrays[f"{part}.bias"].ravel() for part in parts]
        answer = projection(backend.weights.from_numpy(x))
        found = [backend.weights.to_numpy(part).reshape(2, 3, -1) for part in (answer if isinstance(answer, list) else [answer])]
        np.testing.assert_allclose(np.concatenate(found, axis=-1), np.concatenate(expected, axis=-1), rtol=0, atol=1e-5)
    arrays, source, row = random_parameters(CONFIG), sources(), np.array([2, 0, 0])
    first, then = np.array([[3, 4], [5, 6], [4, 4]]), np.array([[6], [5], [3]])
    cache = backend.part("programs.static_cache")
    given = backend.weights.from_numpy
    with backend.wide():
        model = backend.loaded(CONFIG, arrays)
        memory = transformer.encode(parameters.nest(arrays), CONFIG, source)
        started = cache.start_cache(model, given(memory), given(source != PADDING), length=3)
        _, read = cache.decode_step(model, given(first), started)
        with pytest.raises(ValueError, match=r"the cache .* tokens; got"):
            cache.decode_step(model, given(first), read)
        logits, _ = cache.decode_step(model, given(then), cache.reorder(read, given(row)))
        expected = transformer.transformer(parameters.nest(arrays), CONFIG, source[row], np.concatenate([first[row], then], axis=1))
        np.testing.assert_allclose(backend.arrays({"": logits})[""], expected[:, 2:], rtol=0, atol=1e-11)


def test_a_fused_model_gives_what_the_model_gives_and_takes_no_other_dtype() -> None:
    """In TensorFlow; fused models of the other ports only run steps."""
    backend = Backend("tf")
    model = backend.loaded(CONFIG, random_parameters(CONFIG))
    np.testing.assert_allclose(backend.part("programs.fused").fused(model)(sources(), PREFIX), model(sources(), PREFIX), rtol=0, atol=1e-11)
    backend = Backend("jax")
    fused = backend.part("programs.fused").fused
    copy = fused(backend.loaded(CONFIG, random_parameters(CONFIG, "float32")))
    assert fused(copy) is copy
    with pytest.raises(ValueError, match="bfloat16"):
        fused(copy, "bfloat16")


def test_weights_are_rounded_on_request_and_log_p_is_float32(backend: Backend) -> None:
    arrays = random_parameters(CONFIG, "float32")
    half = parameters.nest({name: array.astype(numpy_dtype("bfloat16")) for name, array in arrays.items()})
    searcher = searcher_of(backend, arrays, dtype=backend.dtype("bfloat16"))
    answer = found(backend, searcher, "greedy_search", sources(), max_new_tokens=1)
    assert answer["log_p_bn"].dtype == np.float32
    trees, options = (half, parameters.nest(arrays)), OPTIONS | {"max_new_tokens": 1}
    rounded, exact = (decoding.greedy_search(tree, CONFIG, sources(), options) for tree in trees)
    np.testing.assert_allclose(answer["log_p_bn"], rounded["log_p_bn"], rtol=0, atol=0.1)
    assert np.abs(answer["log_p_bn"] - exact["log_p_bn"]).max() > 1e-4
    assert found(backend, searcher, "beam_search", sources(), beam_size=2, max_new_tokens=1)["score_bw"].dtype == np.float32


@pytest.mark.parametrize("options", [(1.2, 0, 0.3), (1.2, 0, 0.9999), (1.0, 40, 1.0), (1.2, 40, 0.9), (0.5, 999, 1.0)])
def test_large_vocabularies_are_cut_as_by_the_reference(backend: Backend, options: tuple[float, int, float]) -> None:
    logits = 1.5 * np.random.default_rng(0).standard_normal((3, 700))
    logits[:, ::7], logits[0, :2] = np.round(logits[:, ::7]), (0.0, -0.0)
    with backend.wide():
        answer = backend.part("sampling").truncate(backend.weights.from_numpy(logits), *options)
        np.testing.assert_allclose(backend.weights.to_numpy(answer), sampling.truncate(logits, *options), rtol=1e-14)


def test_a_number_of_1_draws_the_last_id_that_is_possible(backend: Backend) -> None:
    """A number just below 1, which float32 rounds to 1."""
    logits = np.array([[0.0, 0.1, 0.2, -np.inf]], np.float32)
    given = [backend.weights.from_numpy(array) for array in (logits, np.ones(1, np.float32))]
    assert int(backend.part("sampling").draw(*given)[0]) == 2


@pytest.mark.parametrize("port", ["tf", "jax"])
def test_lengths_fall_into_few_buckets(port: str) -> None:
    bucket = Backend(port).part("programs.search").bucket
    assert [bucket(length) for length in (1, 16, 17, 33, 64, 65, 128, 129)] == [16, 16, 32, 64, 64, 128, 128, 192]
