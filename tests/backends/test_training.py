"""The Trainer of each port: the reference's steps, resumed runs, random keep masks, and rejected input."""

import functools
import importlib
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import FOUR, PORTS, Backend
from kinds import conformance, every
from messages import mentions

from reference_numpy import TransformerConfig, parameters, preset, sites
from reference_numpy.recipe import PAPER, Recipe
from reference_numpy.strategy import Strategy
from reference_numpy.training import Trainer
from rosettaformer.judge.case import DTYPES, numpy_dtype

# Without attention biases: softmax is invariant to a key's bias, so its gradient is only rounding error, which Adam normalizes.
CONFIG = preset(
    "tiny", source_vocabulary=23, target_vocabulary=23, model_width=12, heads=6, key_value_heads=2, key_size=7, value_size=5,
    feed_forward_width=19, encoder_layers=1, decoder_layers=1, output_bias=True, dropout_rate=0.4, attention_dropout_rate=0.3,
    hidden_dropout_rate=0.2,
)  # fmt: skip
UNTIED = CONFIG.replace(target_vocabulary=29, share_embeddings=False, tie_logits=False, norm_placement="pre", final_norm=True)
STILL = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "hidden_dropout_rate": 0.0}
ALONE = STILL | {
    "source_vocabulary": 23, "target_vocabulary": 23, "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4,
    "feed_forward_width": 19, "max_positions": 8, "attention_bias": False, "classifier_dropout_rate": 0.0,
}  # fmt: skip
RECIPE = PAPER.replace(warmup=3)
FULL = RECIPE.replace(weight_decay=0.1, clip_norm=0.5, microbatches=2)
STRATEGY = Strategy(start_id=1, end_id=2, max_new_tokens=6, beam_size=3, n_best=2)
SEARCHES = ("greedy_search", "beam_search")
CLOSE = 1e-10  # float64, after some steps of Adam, whose quotient amplifies rounding of small gradients
COMPILES = {"numpy": False, "torch": False, "tf": False, "jax": True}  # the faster mode for a few steps


def begin(backend: Backend, config: TransformerConfig = CONFIG, recipe: Recipe = RECIPE, dtype: str = "float64", **settings: Any) -> Any:
    settings = {"compiled": COMPILES[backend.name]} | settings
    return backend.part("training").Trainer(config, recipe, parameters.initialise(config, 0, dtype), **settings)


class Reference:
    """The reference with the parts of a port that `begin` uses."""

    name = "numpy"

    def part(self, name: str) -> Any:
        return importlib.import_module(f"reference_numpy.{name}")


@pytest.fixture(scope="module", params=FOUR)
def each(request: pytest.FixtureRequest) -> Any:
    """Returns the reference or a port."""
    return Reference() if request.param == "numpy" else Backend(request.param)


@pytest.fixture(scope="module")
def shared(each: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Returns one run and its initial state for many tests, since some frameworks compile its step."""
    run = begin(each)
    return run, run.state()


@pytest.fixture
def run(shared: tuple[Any, dict[str, np.ndarray]]) -> Any:
    trainer, state = shared
    trainer.load_state(state, 0)
    return trainer


def batch(seed: int = 0, rows: int = 4, length: int = 7, config: TransformerConfig = CONFIG) -> tuple[Any, np.ndarray]:
    """Returns ids with right padding, left padding, and a row of only padding; or classes as a target. length: of the source."""
    rng = np.random.default_rng([7, seed])
    source, target = rng.integers(1, 23, (rows, length)), rng.integers(1, 23, (rows, 6))
    source[0, 5:] = target[0, 4:] = source[1, :2] = target[1, :3] = source[2] = target[2] = 0
    if config.classes:
        return source, rng.integers(0, config.classes, rows)
    return (source if config.encoder_layers else None), target


def close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert isinstance(found[name], np.ndarray)
        np.testing.assert_allclose(found[name], array, rtol=0, atol=0 if array.dtype.kind == "i" else CLOSE, err_msg=name)


def bits(state: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.items()}


def equals_the_reference(run: Any, config: TransformerConfig, recipe: Recipe, steps: int = 5) -> None:
    other = Trainer(config, recipe, parameters.initialise(config, 0))
    for step in range(steps):
        keep = sites.draw(config, 4, 7, 5, np.random.default_rng([3, step])) if config.dropout_rate else None
        given = *batch(step, config=config), keep
        assert abs(float(run.train_step(*given)) - float(other.train_step(*given))) < CLOSE
    assert run.steps == steps
    close(run.state(), other.state())
    last = batch(9, config=config)
    np.testing.assert_allclose(run.loss(*last), other.loss(*last), rtol=CLOSE)
    if config.classes:
        with pytest.raises(ValueError, match=rf"label ids.*0.*{config.classes - 1}; got {config.classes}"):
            run.train_step(last[0], np.full(4, config.classes))
    elif config.encoder_layers and config.dropout_rate == 0:  # the searches of one run, since some frameworks compile them
        for search in SEARCHES:
            close(getattr(run, search)(batch(9)[0], STRATEGY), getattr(other, search)(batch(9)[0], STRATEGY))


VARIANTS = {
    "tied": (CONFIG, RECIPE),
    "untied-decay-clip-parts": (UNTIED, FULL),
    "no-dropout": (CONFIG.replace(padding_id=None, **STILL), RECIPE),
    "classes": (preset("bert_base", **ALONE, encoder_layers=1, classes=4, masked_language_head=False), FULL),
    "decoder-only": (preset("gpt2_small", **ALONE, decoder_layers=1), FULL),
}
IN_KINDS = [pytest.param(port, name, marks=pytest.mark.conformance) for port in PORTS for name in ("tied", "no-dropout")]
IN_KINDS += [conformance((port, name)) if port != "torch" and name != "untied-decay-clip-parts" else (port, name)
             for port in PORTS for name in ("untied-decay-clip-parts", "classes", "decoder-only")]  # fmt: skip


@pytest.mark.parametrize(("backend", "name"), IN_KINDS, indirect=["backend"])
def test_steps_are_those_of_the_reference(backend: Backend, name: str) -> None:
    equals_the_reference(begin(backend, *VARIANTS[name]), *VARIANTS[name])


@pytest.mark.conformance
@pytest.mark.parametrize("port", PORTS)
def test_the_other_mode_gives_the_same_steps(port: str) -> None:
    """Compiled where the other tests are eager, and vice versa; random keep masks are reproducible."""
    backend = Backend(port)
    run = begin(backend, recipe=FULL, compiled=not COMPILES[port])
    state = run.state()
    equals_the_reference(run, CONFIG, FULL, steps=2)
    losses = []
    for each in (run, run, begin(backend, recipe=FULL)):
        each.load_state(state, 0)
        losses.append([float(each.train_step(*batch(step))) for step in range(2)])
    assert losses[0] == losses[1]
    if port != "torch":  # torch's compiled attention draws its own masks
        np.testing.assert_allclose(losses[0], losses[2], rtol=CLOSE)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_steps_on_cuda_are_those_of_the_reference(backend: Backend, name: str, compiled: bool) -> None:
    """Checks whole steps on the GPU; for torch, `test_torch_devices` only shows that no tensor is created on the CPU."""
    if backend.name == "tf" and not backend.framework.config.list_physical_devices("GPU"):
        pytest.skip("TensorFlow sees no GPU")
    if backend.name == "jax" and not compiled:
        pytest.skip("operation by operation JAX takes minutes")
    equals_the_reference(begin(backend, *VARIANTS[name], device="cuda", compiled=compiled), *VARIANTS[name])


def steps_from(start: int, port: str, compiled: bool, device: str, folder: Path) -> list[str]:
    """Runs steps up to the fourth, from the first or from the state after two; returns losses and saves states. torch has four threads."""
    if port == "torch":
        Backend(port).framework.set_num_threads(4)
    run = begin(Backend(port), recipe=FULL, dtype="float32", compiled=compiled, device=device, seed=5)
    if start:
        run.load_state(dict(np.load(folder / "middle.npz")), start)
    losses = []
    for step in range(start, 4):
        losses.append(float(run.train_step(*batch(step, 64))).hex())
        if step in (1, 3):
            np.savez(folder / ("middle.npz" if step == 1 else f"end{start}.npz"), **run.state())
    return losses


RESUME = """
import pathlib, sys
sys.path[:0] = ["tests/backends", "tests/support"]
import test_training
port, compiled, device, folder = sys.argv[1:]
print(*test_training.steps_from(2, port, compiled == "True", device, pathlib.Path(folder)))
"""
RESUMED = [(port, COMPILES[port], "cpu") for port in ("torch",)]
RESUMED += [conformance(*each, "cpu") for each in (("jax", COMPILES["jax"]), ("tf", COMPILES["tf"]), ("torch", True), ("tf", True))]
RESUMED += [pytest.param(port, compiled, "cuda", marks=pytest.mark.gpu) for port in ("torch", "jax") for compiled in {True, port == "jax"}]


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of torch's threads."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.product
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("port", "compiled", "device"), RESUMED)
def test_a_run_resumed_in_another_process_has_the_same_bits(tmp_path: Path, port: str, compiled: bool, device: str) -> None:
    """On a GPU: its own generator, and kernels whose sums have a fixed order only on request."""
    losses = steps_from(0, port, compiled, device, tmp_path)
    command = [sys.executable, "-c", RESUME, port, str(compiled), device, str(tmp_path)]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert losses[2:] == result.stdout.split()
    assert bits(dict(np.load(tmp_path / "end0.npz"))) == bits(dict(np.load(tmp_path / "end2.npz")))


@pytest.mark.conformance
def test_random_masks_are_a_function_of_seed_and_step_alone(each: Any, run: Any) -> None:
    state, other = run.state(), begin(each, seed=1)

    def loss(trainer: Any, steps: int, of: int = 0) -> float:
        trainer.load_state(state, steps)
        return float(trainer.train_step(*batch(of)))

    first = loss(run, 1)
    loss(run, 5, of=1)
    drawn = {first, loss(run, 2), loss(other, 0), loss(other, 1), loss(other, 2)}
    assert len(drawn) == 5  # seed and step are not swapped
    assert loss(run, 1) == first


def test_every_site_draws_its_own_mask_and_every_microbatch(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's step is one program, so an encoder is called twice. Attention may drop its weights in its own kernel."""
    kind, name = backend.part("dropout").Dropout, {"torch": "forward", "tf": "call", "jax": "__call__"}[backend.name]
    original, seen = getattr(kind, name), []

    @functools.wraps(original)
    def spy(site: Any, x: Any, *rest: Any, **named: Any) -> Any:
        y = original(site, x + 1e3, *rest, **named)  # only dropped elements are zero
        seen.append(backend.weights.to_numpy(y) == 0)
        return y

    monkeypatch.setattr(kind, name, spy)
    config = CONFIG.replace(encoder_layers=2, **dict.fromkeys(STILL, 0.5))
    if backend.name == "jax":
        encoder = backend.build("encoder", config.replace(encoder_layers=1))
        encoder.train()
        encoder(encoder(np.ones((2, 7, 12), np.float32)))
    else:
        begin(backend, config, RECIPE.replace(microbatches=2)).train_step(*np.ones((2, 4, 7), int))
    assert len(seen) >= 2 * (4 if backend.name == "jax" else 12)
    assert all(0.2 < mask.mean() < 0.8 for mask in seen)
    assert len({mask.ravel()[:100].tobytes() for mask in seen}) == len(seen)


def test_evaluation_drops_nothing(each: Any, run: Any) -> None:
    run.train_step(*batch())
    found = run.loss(*batch())
    assert found == run.loss(*batch())
    still = begin(each, CONFIG.replace(**STILL))
    still.load_state(run.state(), 1)
    assert found == still.loss(*batch())


@pytest.mark.conformance
def test_a_batch_without_labels_changes_nothing(run: Any) -> None:
    before, (source, target) = run.state(), (np.zeros_like(token) for token in batch())
    assert float(run.train_step(source, target)) == 0
    assert run.loss(source, target) == (0.0, 0)
    assert bits(run.state()) == bits(before)


def test_the_state_is_a_copy_and_loads_strictly(run: Any) -> None:
    run.train_step(*batch())
    state = run.state()
    kept = {name: array.copy() for name, array in state.items()}
    assert set(state) == {
        f"{kind}.{name}" for kind in ("parameters", "first_moment", "second_moment") for name in parameters.shapes(CONFIG)
    }
    run.train_step(*batch())
    assert bits(state) == bits(kept)
    wrong = {name: array + 1 for name, array in state.items() if name != "first_moment.logits.bias"}
    wrong["second_moment.logits.bias"] = np.zeros(23, np.float32)
    wrong["parameters.logits.bias"] = np.zeros(3)
    wrong["parameters.extra"] = np.zeros(3)
    before = run.state()
    with pytest.raises(ValueError) as error:
        run.load_state(wrong, 7)
    for words in (
        "missing first_moment.logits.bias",
        "must be float64; got float32",
        "must have shape (23,); got (3,)",
        "unexpected parameters.extra",
    ):
        assert mentions(str(error.value), words)
    assert (run.steps, bits(run.state())) == (2, bits(before))
    run.load_state(state, 1)
    state["parameters.source_embedding.table"][:] = 0
    assert (run.steps, bits(run.state())) == (1, bits(kept))


def test_bad_input_is_refused_before_anything_changes(each: Any, run: Any) -> None:
    before, (source, target) = run.state(), batch()
    for arguments, words in (
        ((source + 16, target), r"token ids.*0.*22; got 3\d"),
        ((source, target - 1), r"token ids.*0.*22; got -1"),
        ((source, target[:, :1]), r"target.*2"),
        ((source, target[:2]), "source 4, target 2"),
    ):
        with pytest.raises(ValueError, match=words):
            run.train_step(*arguments)
    assert (run.steps, bits(run.state())) == (0, bits(before))
    with pytest.raises(ValueError, match=r"into 3.*4"):
        begin(each, recipe=RECIPE.replace(microbatches=3)).train_step(source, target)
    with pytest.raises(ValueError, match=r"float32.*float64; got float16"):
        begin(each, dtype="float16")


@pytest.mark.parametrize("each", ["torch", "tf", conformance("jax")], indirect=True)
def test_searches_are_of_the_parameters_as_they_are_now_and_copy_them_once(each: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    searcher = each.part("decoding").Searcher
    for name in ("__init__", "refresh"):
        if original := getattr(searcher, name, None):
            monkeypatch.setattr(
                searcher, name, lambda *args, original=original, **options: copies.append(run.steps) or original(*args, **options)
            )
    source, state = batch()[0], run.state()

    def found() -> np.ndarray:
        run.beam_search(source, STRATEGY)
        return run.greedy_search(source, STRATEGY)["log_p_bn"]

    first = found()
    assert copies == [0]
    run.train_step(*batch())
    assert not np.array_equal(found(), first)
    assert copies == [0, 1]
    run.load_state(state, 0)
    np.testing.assert_array_equal(found(), first)
    assert copies == [0, 1, 0]


@pytest.mark.parametrize(("dtype", "smoothing"), every(5, product(DTYPES, (0.0, 0.1))))
def test_a_label_that_does_not_count_passes_zero_gradient_whatever_its_logits_are(backend: Backend, dtype: str, smoothing: float) -> None:
    logits = np.random.default_rng(1).normal(size=(2, 3, 5))
    logits[0, 1] = np.inf
    label, mask = np.array([[1, 2, 3], [0, 0, 4]]), np.array([[True, False, True], [False] * 3])
    with backend.wide():
        given = logits.astype(numpy_dtype(dtype))
        for which in (mask, np.zeros_like(mask)):
            tensors = [backend.weights.from_numpy(array) for array in (label, which)]
            loss, (gradient,) = backend.gradients(lambda x: backend.part("loss").cross_entropy(x, *tensors, smoothing), given)  # noqa: B023
            assert loss.dtype == gradient.dtype == given.dtype
            assert np.isfinite(loss.astype(float))
            assert np.isfinite(gradient.astype(float)).all()
            assert not gradient[~which].astype(float).any()
    assert float(loss) == 0


def test_a_norm_within_the_limit_keeps_every_bit_and_a_schedule_begins_at_step_1(backend: Backend) -> None:
    """For a limit with `limit * (1 / limit) != 1`, such as 49."""
    gradients = {"kernel": np.array([0.1, 0.7], np.float32), "bias": np.array([0.3], np.float32)}
    clip, given = backend.part("optimizer").clip_global_norm, {name: backend.weights.from_numpy(x) for name, x in gradients.items()}
    assert bits(backend.arrays(clip(given, 49.0))) == bits(gradients)
    short = backend.arrays(clip(given, 0.25))
    assert abs(np.sqrt(sum((x.astype(float) ** 2).sum() for x in short.values())) - 0.25) < 1e-7
    noam = backend.part("schedule").noam
    for name, arguments, came in (("step", (0, 512, 4), "0"), ("warmup", (1, 512, 0), "0"), ("warmup", (1, 512, 2.5), "2.5")):
        with pytest.raises(ValueError, match=rf"{name}.*1; got {came}"):
            noam(*arguments)
