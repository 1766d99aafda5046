"""The first divergence: nothing in correct ports, and the right component in wrong ones, forward and backward."""

import contextlib
import importlib.util
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expectations import all_by_id
from rich.console import Console
from tiers import later

from rosettaformer.conformance.case import Case
from rosettaformer.conformance.catalogue import all_defects
from rosettaformer.conformance.compare import compare
from rosettaformer.conformance.diagnosis.altered import expected
from rosettaformer.conformance.diagnosis.divergence import Backward, Divergence, Row, backward, divergence
from rosettaformer.conformance.ports.adapters.submodules import assign
from rosettaformer.conformance.report.tree import render_backward, render_tree
from rosettaformer.conformance.runner import open_worker

CASES = all_by_id()
WHOLE = CASES["transformer/semillero"]
STACK = CASES["encoder/final_norm"]
FRAMEWORK = {"torch": "torch", "tf": "tensorflow", "jax": "jax", "keras": "tensorflow", "nnx": "flax"}

Write = Callable[..., str]


OTHERS = [("torch", "float32"), ("tf", "float32"), ("tf", "float64"), ("jax", "float64")]


def exhaustive(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def needs(kind: str) -> None:
    if importlib.util.find_spec(FRAMEWORK[kind]) is None:
        pytest.skip(f"{FRAMEWORK[kind]} is not installed")


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def write(kind: str, mistake: str, options: str = "") -> str:
        needs(kind)
        path = tmp_path / f"wrong_{kind}.py"
        path.write_text(f"import traced_{kind}\nglobals().update(traced_{kind}.port({mistake!r}{options}))\n")
        return str(path)

    return write


def diverged(port: str, case: Case, dtype: str, limit: float = 120.0) -> Divergence:
    with contextlib.closing(open_worker(port, threads=1)) as worker:
        return divergence(worker, case, dtype, limit=limit)


def rows(found: Divergence) -> dict[str, Row]:
    return {row.path: row for row in found.rows}


@pytest.mark.parametrize(("port", "dtype"), [("torch", "float64"), later(("jax", "float32")), *(exhaustive(*each) for each in OTHERS)])
def test_our_own_ports_do_not_diverge_and_show_every_component(port: str, dtype: str) -> None:
    needs(port)
    found = diverged(port, WHOLE, dtype)
    assert found.sentence.startswith("no divergence: transformer agrees")
    assert (found.first, found.failures, found.untraced, found.problem, found.heat) == (None, (), (), "", None)
    assert sum(row.component in ("multi_head_attention", "feed_forward", "layer_norm") for row in found.rows) == 6 + 4 + 12
    for row in found.rows:
        assert row.inputs_agree, row
        assert row.free is not None
        assert row.forced is not None
        assert max(row.free.excess, row.forced.excess) <= 1, row


@pytest.mark.second
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_correct_model_under_other_names_and_sequence_first_does_not_diverge(written: Write, dtype: str) -> None:
    found = diverged(written("torch", ""), WHOLE, dtype)
    assert (found.first, found.untraced) == (None, ())
    assert len(found.rows) == 32
    assert all(row.inputs_agree and not row.fails for row in found.rows)


@pytest.mark.parametrize(
    ("kind", "mistake", "path", "words"),
    [
        ("torch", "epsilon", "encoder.layers.1.feed_forward_norm", "x allowed)"),
        ("torch", "unscaled", "encoder.layers.1.self_attention", "x allowed)"),
        (
            "torch",
            "cross query",
            "decoder.layers.0",
            "; its parts are right, but decoder.layers.0.cross_attention is given something else than the reference gives it, "
            "after decoder.layers.0.self_attention_norm",
        ),
        ("torch", "position", "", "its parts are right, but encoder is given something else than the reference gives it, after source_emb"),
        ("torch", "raises", "decoder.layers.0.feed_forward", "(RuntimeError: no such thing)"),
        exhaustive("keras", "epsilon", "layers.1.feed_forward_norm", "x allowed)"),
        exhaustive(
            "keras", "residual", "layers.1", "layers.1.feed_forward_norm is given something else than the reference gives it, after layers."
        ),
        exhaustive("nnx", "unscaled", "layers.1.self_attention", "x allowed)"),
        later(("nnx", "residual", "layers.1", "its parts are right, but layers.1.feed_forward is given something else than the reference")),
    ],
)  # fmt: skip
def test_the_component_that_is_wrong_is_named(written: Write, kind: str, mistake: str, path: str, words: str) -> None:
    found = diverged(written(kind, mistake), WHOLE if kind == "torch" else STACK, "float32")
    assert found.first is not None, found.sentence
    assert found.first.path == path, found.sentence
    assert found.sentence.startswith(f"{path or 'transformer'}: the first component that fails although its inputs agree (")
    assert words in found.sentence
    assert not any(row.fails for row in found.rows if row.path.startswith(("encoder.layers.0", "layers.0")))


def test_what_follows_a_mistake_fails_in_the_free_run_and_agrees_on_the_references_inputs(written: Write) -> None:
    found = rows(diverged(written("torch", "unscaled"), WHOLE, "float64"))
    wrong, after = found["encoder.layers.1.self_attention"], found["encoder.layers.1.self_attention_norm"]
    assert wrong.inputs_agree
    assert wrong.fails
    assert after.inputs_agree is False
    assert after.free is not None
    assert after.free.excess > 1
    assert not after.fails
    assert found["encoder.layers.1"].fails
    assert found["encoder"].fails
    assert found["decoder"].depth == 1
    assert found["decoder.layers.0.feed_forward"].depth == 3


def test_a_failure_is_a_case_whose_heat_map_is_of_the_worst_slice(written: Write) -> None:
    found = diverged(written("torch", "unscaled"), WHOLE, "float64")
    assert [failure.path for failure in found.failures] == ["encoder.layers.1.self_attention", "encoder.layers.1", "encoder", ""]
    failure = found.failures[0]
    assert failure.case.component == "multi_head_attention"
    expectations = expected((all_defects()["ATT3"],), failure.case)
    assert expectations is not None
    assert compare(expectations["output"], failure.output).excess <= 1
    found = diverged(written("torch", "unscaled"), WHOLE, "float32")
    assert found.heat is not None
    assert np.shape(found.heat) == (7, 13)
    first = found.first
    assert first is not None
    assert first.forced is not None
    assert np.max(found.heat) == pytest.approx(min(first.forced.error / _allowed(first), 1e6), rel=0.01)


def _allowed(row: Row) -> float:
    assert row.forced is not None
    return float(row.forced.message.rpartition("allowed ")[2])


def test_a_component_that_fails_within_one_that_agrees_is_none_and_the_same_embedding_is(written: Write) -> None:
    found = diverged(written("torch", "", ", scale='outside'"), WHOLE, "float64")
    assert found.first is None
    row = rows(found)["source_embedding"]
    assert row.fails
    assert row.message.endswith("but what is around it agrees: the port divides the work otherwise")
    found = diverged(written("torch", "", ", scale='nowhere'"), WHOLE, "float64")
    assert found.first is not None
    assert found.first.path == "source_embedding"
    assert "source_embedding" in {failure.path for failure in found.failures}


@pytest.mark.second
@pytest.mark.parametrize(
    ("mistake", "path"),
    [("cross query", "decoder.layers.0"), ("raises", "decoder.layers.0.feed_forward"), ("float32 positions", ""), ("halves", "")],
)
def test_what_the_next_step_undoes_is_not_named_where_something_else_is_wrong(written: Write, mistake: str, path: str) -> None:
    """sqrt(d) after the embedding, in a model that has a mistake of its own, in the very sum that follows among others."""
    found = diverged(written("torch", mistake, ", scale='outside'"), WHOLE, "float64")
    assert found.first is not None
    assert found.first.path == path
    assert not {"source_embedding", "target_embedding"} & {failure.path for failure in found.failures}
    for name in ("source_embedding", "target_embedding"):
        assert rows(found)[name].fails
        assert rows(found)[name].message.endswith("but what follows undoes it: the port divides the work otherwise")


@pytest.mark.second
def test_what_cannot_be_forced_or_has_several_calls_is_known_as_far_as_it_goes(written: Write) -> None:
    found = diverged(written("torch", "flattened"), WHOLE, "float64")
    row = rows(found)["decoder.layers.0.feed_forward"]
    assert (found.first, row.forced, row.inputs_agree) == (None, None, None)
    assert row.message == "cannot be forced: the reference's inputs have shapes (3, 5, 13); the module's (15, 13)"
    found = diverged(written("torch", "wasteful"), WHOLE, "float64")
    assert (found.first, len(found.rows)) == (None, 32)
    assert [row.path for row in found.rows if row.inputs_agree is False] == ["decoder.layers.0.feed_forward"]
    found = diverged(written("torch", "epsilon", ", paths=()"), WHOLE, "float64")
    assert found.first is not None
    assert found.first.path == "encoder.layers.1"
    assert {"source_embedding", "encoder.layers.1.feed_forward_norm", "logits"} <= set(found.untraced)


@pytest.mark.second
def test_a_port_that_crashes_or_hangs_is_known_as_far_as_it_came(written: Write) -> None:
    found = diverged(written("torch", "crashes"), WHOLE, "float64")
    assert found.problem == "crash: the port's process ended with signal 11"
    assert found.first is not None
    assert found.first.path == "decoder.layers.0.feed_forward"
    attention = rows(found)["decoder.layers.0.cross_attention"]
    assert attention.inputs_agree
    assert not attention.fails
    assert "decoder.layers.1" in found.untraced
    found = diverged(written("torch", "hangs"), WHOLE, "float64", limit=5)
    assert found.problem == "hang: no answer within 5 s"
    assert found.first is not None
    assert found.first.path == "decoder.layers.0.feed_forward"
    found = diverged(written("torch", "crashes when forced"), WHOLE, "float64")
    assert (found.first, found.problem, len(found.rows)) == (None, "", 32)


def test_a_port_of_functions_shows_nothing_and_that_is_said() -> None:
    found = diverged("wrong_port", CASES["layer_norm/plain"], "float64")
    assert found.rows == ()
    assert found.problem.startswith("not covered: the port gives functions")
    assert found.sentence.startswith("layer_norm could not be traced: ")


def test_the_tree_is_shown(written: Write) -> None:
    console = Console(file=io.StringIO(), width=200)
    render_tree(console, diverged(written("torch", "cross query"), WHOLE, "float32"))
    lines = console.file.getvalue().splitlines()
    assert any(line.startswith("     layers.0 ") and "the first divergence" in line for line in lines)
    assert any(line.startswith("       cross_attention ") and "its inputs differ" in line for line in lines)
    assert lines[-1].startswith("decoder.layers.0: the first component")


def _backward(port: str, case: str, dtype: str) -> Backward:
    with contextlib.closing(open_worker(port, threads=1)) as worker:
        return backward(worker, divergence(worker, CASES[case], dtype), CASES[case])


@pytest.mark.second
@pytest.mark.parametrize(
    ("port", "case", "dtype"),
    [
        ("torch", "transformer/semillero", "float32"),
        exhaustive("tf", "transformer/keras_lab", "float32"),
        exhaustive("torch", "transformer/semillero", "float64"),
        exhaustive("torch", "transformer/keras_lab", "float64"),
        exhaustive("torch", "transformer/keras_lab", "bfloat16"),
        exhaustive("jax", "transformer/keras_lab", "float64"),
    ],
)
def test_the_gradients_of_our_own_ports_do_not_diverge(port: str, case: str, dtype: str) -> None:
    needs(port)
    found = _backward(port, case, dtype)
    assert found.first is None, found.sentence
    assert all(row.gradients for row in found.rows), found.rows
    assert {"", "source_embedding", "target_embedding", "encoder.layers.0.self_attention", "logits"} <= {row.path for row in found.rows}
    assert found.rows[0].path == ""
    assert found.rows[-1].path == "source_embedding"


@pytest.mark.second
@pytest.mark.parametrize(
    ("kind", "dtype", "path", "words"),
    [
        exhaustive("torch", "float64", "encoder.layers.1.self_attention", "x allowed)"),
        ("torch", "float32", "encoder.layers.1.self_attention", "x allowed)"),
        exhaustive("keras", "float32", "layers.1", "; the gradients of its parts are right, so it is what lies between them"),
        exhaustive("nnx", "float64", "layers.1.feed_forward", "x allowed)"),
    ],
)
def test_a_gradient_that_is_stopped_is_found_where_it_stops(written: Write, kind: str, dtype: str, path: str, words: str) -> None:
    found = _backward(written(kind, "detached"), "transformer/semillero" if kind == "torch" else "encoder/final_norm", dtype)
    assert found.first is not None, found.sentence
    assert found.first.path == path, found.sentence
    assert found.sentence.startswith(f"{path}: in backward order the first component whose gradient is wrong, that of ")
    assert found.sentence.endswith(words)
    console = Console(file=io.StringIO(), width=200)
    render_backward(console, found)
    assert found.sentence in console.file.getvalue()


X, MEMORY, IDS = np.ones((3, 5, 13)), np.ones((3, 7, 13)), np.ones((3, 5), int)


@pytest.mark.parametrize(
    ("own", "wanted", "chosen"),
    [
        ([X, MEMORY, MEMORY], [X, MEMORY], [0, 1, 1]),
        ([MEMORY, X], [X, MEMORY], [1, 0]),
        ([X.swapaxes(0, 1), MEMORY], [X, MEMORY], [0, 1]),
        ([X], [X, X], [0]),
        ([X, X, X], [X, X], [0, 1, 1]),
        ([X, np.zeros((3, 1, 5, 5))], [X], [0, None]),
        ([X, IDS], [X], [0, None]),
        ([IDS], [IDS], [0]),
        ([X], [X, MEMORY], None),
        ([X[0]], [X], None),
        ([], [], None),
    ],
)
def test_inputs_are_matched_by_kind_shape_and_order(
    own: list[np.ndarray], wanted: list[np.ndarray], chosen: list[int | None] | None
) -> None:
    assert assign(own, wanted) == chosen
