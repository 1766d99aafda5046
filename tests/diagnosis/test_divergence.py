"""The first divergence: none in correct ports, and the right component in incorrect ones, forward and backward."""

import contextlib
import functools
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import InProcess
from kinds import conformance
from messages import mentions
from rich.console import Console

from rosettaformer.judge.case import Case
from rosettaformer.judge.catalogue import all_defects
from rosettaformer.judge.compare import compare
from rosettaformer.judge.diagnosis.altered import expected
from rosettaformer.judge.diagnosis.divergence import Backward, Divergence, backward, divergence
from rosettaformer.judge.ports.adapters.submodules import assign
from rosettaformer.judge.ports.process import Worker
from rosettaformer.judge.ports.session import open_worker
from rosettaformer.judge.report.matrix import render_backward, render_tree
from rosettaformer.judge.suite import all_cases

FRAMEWORK = {"torch": "torch", "tf": "tensorflow", "jax": "flax", "handwritten": "torch"}
WHOLE, STACK = "transformer/nn_transformer", "encoder/final_norm"
# A torch model under other names, and an encoder of our own ports, each with a chosen bug.
PORTS = {
    "handwritten": f"""
import os, signal, sys, time
sys.path.insert(0, {str(Path(__file__).parents[1] / "ports")!r})
from handwritten_torch import *

def build(config, dtype):
    model = Model(config, corrected=True)
    (_, encoder), (decoder, _) = model.encoder_blocks, model.decoder_blocks
    MISTAKE
    return model

components = {{"transformer": build}}
""",
    "tf": """
from impl_tf import port
from impl_tf.port import framework, weights
import tensorflow as tf

def build(config, dtype):
    encoder = port.components["encoder"](config, dtype)
    layer = encoder.layers[1]
    hidden = layer.feed_forward.hidden.call
    MISTAKE
    return encoder

components = {"encoder": build}
""",
    "jax": """
from impl_jax import port
from impl_jax.port import framework, weights
import jax

class Detached(port.FeedForward):
    def __call__(self, x_btd, *rest):
        return super().__call__(jax.lax.stop_gradient(x_btd), *rest)

def build(config, dtype):
    encoder = port.components["encoder"](config, dtype)
    layer = encoder.layers[1]
    MISTAKE
    return encoder

components = {"encoder": build}
""",
}
ROWS, UNTRACED = 28, ("source_embedding", "encoder", "target_embedding", "decoder")  # values for the torch model
EMBEDDINGS = "module_paths = (*module_paths, ('source_embedding', 'src_embed'), ('target_embedding', 'tgt_embed'))"
POSITIONS = "model.embed = lambda table, tokens: table(tokens) * config.model_width**0.5 + "
FEED_FORWARD = "decoder.ffn.register_forward_hook(lambda *given: "
MISTAKES = {
    "": "pass",
    "epsilon": "encoder.norm2.eps = 1e-3",
    "unscaled": "encoder.attention.w_q.register_forward_hook(lambda module, args, query: query * config.key_size**0.5)",
    "detached": "encoder.attention.w_q.register_forward_hook(lambda module, args, query: query.detach())",
    "cross query": "decoder.corrected = False",
    "position": "model.pos.register_forward_pre_hook(lambda module, args: (args[0] + 1,))",
    "float32 positions": f"{POSITIONS}model.pos.pe[: tokens.size(1)].float()",
    "halves": f"{POSITIONS}torch.cat([model.pos.pe[: tokens.size(1), start::2] for start in (0, 1)], -1)",
    "no scale": "model.d_model = 1",
    "raises": f"{FEED_FORWARD}1 / 0)",
    "crashes": f"{FEED_FORWARD}os.kill(os.getpid(), signal.SIGSEGV))",
    "crashes when forced": f"calls = []; {FEED_FORWARD}calls.append(0) or len(calls) > 1 and os.kill(os.getpid(), signal.SIGSEGV) or None)",
    "hangs": f"{FEED_FORWARD}time.sleep(600))",
    "wasteful": "decoder.norm2.register_forward_hook(lambda module, args, y: (decoder.ffn(2 * y), decoder.ffn(y[:, :1])) and None)",
    "flattened": """
    decoder.ffn.register_forward_pre_hook(lambda module, args: (args[0].flatten(0, 1),))
    decoder.dropout.register_forward_pre_hook(lambda module, args: (args[0].view(3, 5, -1),))""",
    "sequence first": """
    for block in (*model.encoder_blocks, *model.decoder_blocks):
        block.ffn.register_forward_pre_hook(lambda module, args: (args[0].transpose(0, 1),))
        block.dropout.register_forward_pre_hook(lambda module, args: (args[0].transpose(0, 1) if len(args[0]) > 3 else args[0],))""",
    "epsilon of a layer": "layer.feed_forward_norm.epsilon = 1e-3",
    "detached in tf": "layer.feed_forward.hidden.call = lambda x: hidden(tf.stop_gradient(x))",
    "detached in jax": "layer.feed_forward.__class__ = Detached",
}

Write = Callable[..., str]

OTHERS = [("torch", "float32"), ("tf", "float32"), ("tf", "float64"), ("jax", "float32"), ("jax", "float64")]


def port_file(folder: Path, kind: str, mistake: str, more: str = "") -> str:
    pytest.importorskip(FRAMEWORK[kind])
    path = folder / f"wrong_{kind}.py"
    path.write_text(PORTS[kind].replace("MISTAKE", MISTAKES[mistake]) + more)
    return str(path)


@pytest.fixture
def written(tmp_path: Path) -> Write:
    return functools.partial(port_file, tmp_path)


@functools.cache
def fitted(name: str, config: str) -> Case:
    return next(case for case in all_cases(json.loads(config)) if case.id == name)


def asked(worker: Worker, name: str) -> Case:
    """Returns the case with the config that the worker's port fixes."""
    return fitted(name, json.dumps(worker.greeting[1]["config"]))


def diverged(port: str, name: str, dtype: str, limit: float = 120.0, start: Callable[..., Worker] = InProcess) -> Divergence:
    with contextlib.closing(start(port, threads=1)) as worker:
        return divergence(worker, asked(worker, name), dtype, limit=limit)


@functools.cache
def handwritten(mistake: str, dtype: str, more: str = "") -> Divergence:
    """Returns where the torch model with the bug diverges; more: lines appended to the port's file."""
    with tempfile.TemporaryDirectory() as folder:
        return diverged(port_file(Path(folder), "handwritten", mistake, more), WHOLE, dtype)


def rows(found: Divergence | Backward) -> dict[str, Any]:
    return {row.path: row for row in found.rows}


def first(found: Divergence | Backward) -> str | None:
    """Returns the path of the first divergence; None if there is none."""
    return found.first and found.first.path


@pytest.mark.parametrize(("port", "dtype"), [("torch", "float64"), *map(conformance, OTHERS)])
def test_our_own_ports_do_not_diverge_and_show_every_component(port: str, dtype: str) -> None:
    pytest.importorskip(FRAMEWORK[port])
    found = diverged(port, WHOLE, dtype)
    assert mentions(found.sentence, "no divergence … transformer")
    assert (found.first, found.failures, found.untraced, found.problem, found.heat) == (None, (), (), "", None)
    assert sum(row.component in ("multi_head_attention", "feed_forward", "layer_norm") for row in found.rows) == 6 + 4 + 12
    for row in found.rows:
        assert row.inputs_agree and row.free and row.forced, row
        assert max(row.free.excess, row.forced.excess) <= 1, row


@pytest.mark.conformance
@pytest.mark.parametrize(("mistake", "dtype"), [("", "float64"), ("sequence first", "float64"), ("sequence first", "float32")])
def test_a_model_under_other_names_and_sequence_first_does_not_diverge(mistake: str, dtype: str) -> None:
    found = handwritten(mistake, dtype)
    assert (found.first, found.untraced) == (None, UNTRACED)
    assert len(found.rows) == ROWS
    assert all(row.inputs_agree and not row.fails for row in found.rows)


@pytest.mark.parametrize(
    ("kind", "mistake", "path", "words"),
    [
        ("handwritten", "epsilon", "encoder.layers.1.feed_forward_norm", "x allowed)"),
        conformance("handwritten", "unscaled", "encoder.layers.1.self_attention", "x allowed)"),
        conformance("handwritten", "cross query", "decoder.layers.0", "0.cross_attention … 0.self_attention_norm"),
        ("handwritten", "position", "", "encoder.positional_encoding"),
        ("handwritten", "raises", "decoder.layers.0.feed_forward", "(ZeroDivisionError: division by zero)"),
        conformance("tf", "epsilon of a layer", "layers.1.feed_forward_norm", "x allowed)"),
        conformance(("jax", "epsilon of a layer", "layers.1.feed_forward_norm", "x allowed)")),
    ],
)  # fmt: skip
def test_the_component_that_is_wrong_is_named(written: Write, kind: str, mistake: str, path: str, words: str) -> None:
    found = handwritten(mistake, "float32") if kind == "handwritten" else diverged(written(kind, mistake), STACK, "float32")
    assert first(found) == path and found.sentence.startswith(f"{path or 'transformer'}: "), found.sentence
    assert mentions(found.sentence, words)
    assert not any(row.fails for row in found.rows if row.path.startswith(("encoder.layers.0", "layers.0")))


def test_what_follows_a_mistake_fails_in_the_free_run_and_agrees_on_the_references_inputs() -> None:
    found = handwritten("unscaled", "float64")
    tree = rows(found)
    wrong, after = tree["encoder.layers.1.self_attention"], tree["encoder.layers.1.self_attention_norm"]
    assert (wrong.inputs_agree, wrong.fails, after.inputs_agree, after.fails) == (True, True, False, False)
    assert after.free and after.free.excess > 1
    assert tree["encoder.layers.1"].fails and tree[""].fails
    assert (tree["decoder.layers.0"].depth, tree["decoder.layers.0.feed_forward"].depth) == (1, 2)
    assert [failure.path for failure in found.failures] == ["encoder.layers.1.self_attention", "encoder.layers.1", ""]
    failure = found.failures[0]
    assert failure.case.component == "multi_head_attention"
    expectations = expected((all_defects()["ATT3"],), failure.case)
    assert expectations and compare(expectations["output"], failure.output).excess <= 1


def test_the_heat_map_is_of_the_worst_slice() -> None:
    found = handwritten("unscaled", "float32")
    assert found.heat is not None and found.first and found.first.forced
    assert np.shape(found.heat) == (7, 12)
    allowed = float(found.first.forced.message.rpartition("allowed ")[2])
    assert np.max(found.heat) == pytest.approx(min(found.first.forced.error / allowed, 1e6), rel=0.01)


def test_a_component_that_fails_within_one_that_agrees_is_none_and_the_same_embedding_is() -> None:
    found = handwritten("", "float64", EMBEDDINGS)
    row = rows(found)["source_embedding"]
    assert first(found) is None and row.fails and mentions(row.message, "around it agrees")
    found = handwritten("no scale", "float64", EMBEDDINGS)
    assert first(found) == "source_embedding" in {failure.path for failure in found.failures}


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("mistake", "path"),
    [("cross query", "decoder.layers.0"), ("raises", "decoder.layers.0.feed_forward"), ("float32 positions", ""), ("halves", "")],
)
def test_what_the_next_step_undoes_is_not_named_where_another_is_wrong(mistake: str, path: str) -> None:
    """sqrt(d) after the embedding, in a model with its own bug, which may be in the sum that follows."""
    found = handwritten(mistake, "float64", EMBEDDINGS)
    assert first(found) == path
    for name in ("source_embedding", "target_embedding"):
        assert name not in {failure.path for failure in found.failures}
        assert rows(found)[name].fails and "undoes it" in rows(found)[name].message


@pytest.mark.conformance
def test_what_cannot_be_forced_or_has_several_calls_is_known_as_far_as_it_goes() -> None:
    found = handwritten("flattened", "float64")
    row = rows(found)["decoder.layers.0.feed_forward"]
    assert (found.first, row.forced, row.inputs_agree) == (None, None, None)
    assert mentions(row.message, "(3, 5, 12) … (15, 12)")
    found = handwritten("wasteful", "float64")
    assert (found.first, len(found.rows)) == (None, ROWS)
    assert [row.path for row in found.rows if row.inputs_agree is False] == ["decoder.layers.0.feed_forward"]
    found = handwritten("epsilon", "float64", "module_paths = ()")
    assert first(found) == ""
    assert {"source_embedding", "encoder.layers.1.feed_forward_norm", "logits"} <= set(found.untraced)


@pytest.mark.conformance
@pytest.mark.parametrize(("mistake", "problem"), [("crashes", "crash … signal 11"), ("hangs", "hang: no answer within 5 s")])
def test_a_port_that_crashes_or_hangs_is_known_as_far_as_it_came(written: Write, mistake: str, problem: str) -> None:
    found = diverged(written("handwritten", mistake), WHOLE, "float64", 5, open_worker)
    assert mentions(found.problem, problem) and first(found) == "decoder.layers.0.feed_forward"
    attention = rows(found)["decoder.layers.0.cross_attention"]
    assert attention.inputs_agree and not attention.fails
    assert "decoder.layers.1" in found.untraced


@pytest.mark.conformance
def test_a_port_that_crashes_in_a_forced_run_is_asked_again(written: Write) -> None:
    found = diverged(written("handwritten", "crashes when forced"), WHOLE, "float64", start=open_worker)
    assert (found.first, found.problem, len(found.rows)) == (None, "", ROWS)


def test_a_port_of_functions_shows_nothing_and_that_is_said() -> None:
    found = diverged("wrong_port", "layer_norm/plain", "float64")
    assert found.rows == () and found.problem.startswith("not covered")
    assert found.sentence.startswith("layer_norm")


def test_the_tree_is_shown() -> None:
    console = Console(file=io.StringIO(), width=200)
    render_tree(console, handwritten("cross query", "float32"))
    lines = console.file.getvalue().splitlines()
    assert any(line.startswith("   decoder.layers.0 ") and "the first divergence" in line for line in lines)
    assert any(line.startswith("     cross_attention ") and "its inputs differ" in line for line in lines)
    assert mentions(lines[-1], "decoder.layers.0")


def _backward(port: str, name: str, dtype: str) -> Backward:
    with contextlib.closing(InProcess(port)) as worker:
        return backward(worker, divergence(worker, asked(worker, name), dtype), asked(worker, name))


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("port", "case", "dtype"),
    [
        ("torch", WHOLE, "float32"),
        ("tf", "transformer/unscaled_embedding", "float32"),
        *(("torch", "transformer/unscaled_embedding", dtype) for dtype in ("float64", "bfloat16")),
        ("jax", "transformer/unscaled_embedding", "float64"),
    ],
)
def test_the_gradients_of_our_own_ports_do_not_diverge(port: str, case: str, dtype: str) -> None:
    pytest.importorskip(FRAMEWORK[port])
    found = _backward(port, case, dtype)
    assert found.first is None, found.sentence
    assert all(row.gradients for row in found.rows), found.rows
    assert {"target_embedding", "encoder.layers.0.self_attention", "logits"} <= rows(found).keys()
    assert (found.rows[0].path, found.rows[-1].path) == ("", "source_embedding")


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("kind", "mistake", "dtype", "path"),
    [
        ("handwritten", "detached", "float32", "encoder.layers.1.self_attention"),
        ("tf", "detached in tf", "float32", "layers.1.feed_forward"),
        ("jax", "detached in jax", "float64", "layers.1.feed_forward"),
    ],
)
def test_a_gradient_that_is_stopped_is_found_where_it_stops(written: Write, kind: str, mistake: str, dtype: str, path: str) -> None:
    found = _backward(written(kind, mistake), WHOLE if kind == "handwritten" else STACK, dtype)
    assert first(found) == path and found.sentence.startswith(f"{path}: "), found.sentence
    end = "x allowed)" if kind == "handwritten" else "between them"  # our own ports also trace the dropout in between
    assert found.sentence.endswith(end)
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
