"""Parts of a graph other than a config's numbers: training operations, finite masks, outputs that are not judged."""

from pathlib import Path

import numpy as np
import pytest

from rosettaformer.files.artefacts import meanings
from rosettaformer.files.artefacts.calls import Calls, unjudged
from rosettaformer.files.artefacts.constants import constants
from rosettaformer.files.artefacts.declared import nodes
from rosettaformer.files.artefacts.opening import open_artefact
from rosettaformer.files.artefacts.signature import Entry, Tensor

onnx = pytest.importorskip("onnx")
from export_models import MODELS  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

FLOAT, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL
node = helper.make_node


def graph(path: Path, nodes: list, held: dict[str, object], outputs: tuple[str, ...] = ("y",)) -> Path:
    """Writes a model of these nodes, with inputs x, a condition c and a mode."""
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()]
    given = [helper.make_tensor_value_info("x", FLOAT, ["b", 4])]
    given += [helper.make_tensor_value_info(name, BOOL, []) for name in ("c", "mode")]
    ends = [helper.make_tensor_value_info(name, FLOAT, ["b", 4]) for name in outputs]
    onnx.save(helper.make_model(helper.make_graph(nodes, "net", given, ends, tensors)), path)
    return path


def drawn(path: Path) -> list[str]:
    found = constants(path)
    assert not found.reason
    return [one.place for one in nodes.live(found) if one.random and [*nodes.of_training(found, [one])]]


def masked(path: Path) -> list[tuple[str, str]]:
    """Returns the finite masks of a file, and the score up to which each hides a token."""
    found = constants(path)
    words = [sentence.split() for sentence in nodes.masks(found, nodes.live(found))]
    return [(one[2].rstrip(","), one[-1]) for one in words]


ON, OFF, HALF, NONE = np.array(True), np.array(False), np.float32(0.5), np.float32(0)
TRAINING = {
    "dropout": (node("Dropout", ["x", "half", "on"], ["y"], name="d"), True),
    "dropout by default": (node("Dropout", ["x", "", "on"], ["y"], name="d"), True),
    "dropout of a mode that is an input": (node("Dropout", ["x", "half", "mode"], ["y"], name="d"), True),
    "inference": (node("Dropout", ["x", "half", "off"], ["y"], name="d"), False),
    "no mode": (node("Dropout", ["x", "half"], ["y"], name="d"), False),
    "nothing is dropped": (node("Dropout", ["x", "none", "on"], ["y"], name="d"), False),
    "random numbers": (node("RandomUniformLike", ["x"], ["y"], name="d"), True),
    "choices": (node("Bernoulli", ["x"], ["y"], name="d"), True),
    "a batch's own norm": (node("BatchNormalization", ["x", "f", "f", "f", "f"], ["y"], name="d", training_mode=1), True),
    "a batch norm": (node("BatchNormalization", ["x", "f", "f", "f", "f"], ["y"], name="d"), False),
}


@pytest.mark.parametrize("name", TRAINING)
def test_an_operation_of_training_is_found(name: str, tmp_path: Path) -> None:
    operation, live = TRAINING[name]
    held = {"on": ON, "off": OFF, "half": HALF, "none": NONE, "f": np.ones(4, np.float32)}
    assert drawn(graph(tmp_path / "net.onnx", [operation], held)) == ["d"] * live


def test_only_what_reaches_an_output_counts(tmp_path: Path) -> None:
    dropped = node("Dropout", ["x", "half", "on"], ["z"], name="d")
    held = {"on": ON, "half": HALF}
    assert drawn(graph(tmp_path / "dead.onnx", [dropped, node("Neg", ["x"], ["y"])], held)) == []
    assert drawn(graph(tmp_path / "live.onnx", [dropped, node("Neg", ["z"], ["y"])], held)) == ["d"]
    branches = [
        helper.make_graph([one], f"{one.op_type} branch", [], [helper.make_tensor_value_info("z", FLOAT, ["b", 4])])
        for one in (node("Neg", ["x"], ["z"]), dropped)
    ]
    chosen = node("If", ["c"], ["y"], name="if", then_branch=branches[0], else_branch=branches[1])
    assert drawn(graph(tmp_path / "branch.onnx", [chosen], held)) == ["d"]


LARGEST = float(np.finfo(np.float32).max)
ZERO, ONE = np.float32(0), np.float32(1)
MASKS = {
    "added": ([node("Where", ["c", "zero", "m"], ["z"]), node("Add", ["x", "z"], ["y"])], -1e4, "9,896"),
    "chosen": ([node("Where", ["c", "x", "m"], ["y"])], -1e4, "-9,896"),
    "of half the largest": ([node("Where", ["c", "x", "m"], ["y"])], -LARGEST / 2, "-1.70141e+38"),
    "of the largest": ([node("Where", ["c", "x", "m"], ["y"])], -LARGEST, ""),
    "infinite": ([node("Where", ["c", "x", "m"], ["y"])], -np.inf, ""),
    "a product with 1 - mask": ([node("Sub", ["one", "x"], ["z"]), node("Mul", ["z", "m"], ["y"])], -1e4, "9,896"),
    "a product with mask - 1": ([node("Sub", ["x", "one"], ["z"]), node("Mul", ["z", "m"], ["y"])], 1e4, "9,896"),
    "a subtracted product": (
        [node("Sub", ["one", "x"], ["z"]), node("Mul", ["z", "m"], ["w"]), node("Sub", ["x", "w"], ["y"])],
        1e4, "9,896",
    ),
    "a large factor": ([node("Mul", ["x", "m"], ["y"])], 1e4, ""),
    "a bound": ([node("Clip", ["x", "m"], ["y"])], -1e4, ""),
    "small": ([node("Add", ["x", "m"], ["y"])], -9.0, ""),
    "a table": ([node("Add", ["x", "m"], ["y"])], np.array([0, -1e9, 0, 0]), "1e+09"),
    "other numbers": ([node("Add", ["x", "m"], ["y"])], np.array([3, -1e9, 0, 0]), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_a_finite_mask_is_told_with_the_score_up_to_which_it_hides(name: str, tmp_path: Path) -> None:
    nodes, number, limit = MASKS[name]
    found = masked(graph(tmp_path / "net.onnx", nodes, {"m": np.float32(number), "zero": ZERO, "one": ONE}))
    assert [limit for _, limit in found] == [limit] * bool(limit)


def test_the_mask_that_an_operation_has_by_default_is_told(tmp_path: Path) -> None:
    attention = node("MultiHeadAttention", ["x", "x", "x"], ["y"], domain="com.microsoft", num_heads=1)
    assert [limit for _, limit in masked(graph(tmp_path / "default.onnx", [attention], {}))] == ["9,896"]
    attention.attribute.append(helper.make_attribute("mask_filter_value", -float("inf")))
    assert masked(graph(tmp_path / "infinite.onnx", [attention], {})) == []


class Dropping:
    """Models that drop a part of x in training, as files of each format."""

    @staticmethod
    def pt2(path: Path, training: bool) -> None:
        torch = pytest.importorskip("torch")
        block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).train(training)
        torch.export.save(torch.export.export(block, (torch.ones(3, 4),)), path.with_suffix(".pt2"))

    @staticmethod
    def savedmodel(path: Path, training: bool) -> None:
        tf = pytest.importorskip("tensorflow")

        class Model(tf.Module):
            @tf.function(input_signature=[tf.TensorSpec((None, 4))])
            def infer(self, x):
                return tf.nn.dropout(x, 0.5) if training else x * 2

            @tf.function(input_signature=[tf.TensorSpec((None, 4))])
            def train(self, x):
                return tf.nn.experimental.stateless_dropout(x, 0.5, seed=[1, 2])

        model = Model()
        tf.saved_model.save(model, path, signatures={"serving_default": model.infer, "train": model.train})

    @staticmethod
    def litert(path: Path, training: bool) -> None:
        tf = pytest.importorskip("tensorflow")
        pytest.importorskip("ai_edge_litert")
        function = tf.function(lambda x: x * (tf.random.uniform((3, 4)) if training else 2.0))
        concrete = function.get_concrete_function(tf.TensorSpec((3, 4)))
        path.with_suffix(".tflite").write_bytes(tf.lite.TFLiteConverter.from_concrete_functions([concrete]).convert())

    @staticmethod
    def stablehlo(path: Path, training: bool) -> None:
        jax = pytest.importorskip("jax")

        def apply(x):
            keep = jax.random.bernoulli(jax.random.key(0), 0.5, x.shape) if training else x > 0
            return jax.numpy.where(keep, x, 0)

        shape = jax.ShapeDtypeStruct((3, 4), jax.numpy.float32)
        path.with_suffix(".stablehlo").write_bytes(jax.export.export(jax.jit(apply))(shape).serialize())


@pytest.mark.conformance
@pytest.mark.parametrize("kind", ["pt2", "savedmodel", "litert", "stablehlo"])
@pytest.mark.parametrize("training", [True, False])
def test_every_format_shows_what_is_drawn_at_random(kind: str, training: bool, tmp_path: Path) -> None:
    getattr(Dropping, kind)(tmp_path / "model", training)
    (file,) = tmp_path.iterdir()
    found = constants(file)
    assert not found.reason
    assert bool([*nodes.of_training(found, nodes.live(found, {"forward"}))]) == training
    if kind == "savedmodel":
        assert [*nodes.of_training(found, nodes.live(found, {"train"}))]


@pytest.mark.conformance
def test_a_function_that_a_saved_model_offers_twice_is_one(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None, 4))])
        def infer(self, x):
            return x * 2

        @tf.function(input_signature=[tf.TensorSpec((None, 4))])
        def other(self, x):
            return x * 3

    model = Model()
    tf.saved_model.save(model, tmp_path, signatures={"serving_default": model.infer, "serve": model.infer, "other": model.other})
    bodies = {name: entry.body for name, entry in open_artefact(tmp_path).entries.items()}
    assert bodies["forward"] == bodies["serve"] != bodies["other"]


class Functions:
    """A bundle of functions that are not run."""

    def __init__(self, *entries: Entry) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self.names = tuple(self._entries)

    def entry(self, name: str) -> Entry:
        return self._entries[name]


IDS, LOGITS = Tensor("input_ids", "int64", ("b", "t")), Tensor("logits", "float32", ("b", "t", 19))
CACHE = [Tensor(f"{kind}.0.{part}", "float32", ("b", 2, "t", 4)) for kind in ("past_key_values", "present") for part in ("key", "value")]
SENTENCE, BERT = Tensor("sentence_embedding", "float32", ("b", 8)), MODELS["bert"].replace(pooler=True)


def left(config, asked: set[str], *entries: Entry, function: str = "", **outputs: str) -> list[str]:
    table = meanings.parse([f"{name}={meaning}" for name, meaning in outputs.items()])
    calls = Calls(Functions(*entries), config, table, function)
    return [place for place, _ in unjudged(calls, asked, bool(function))]


def test_outputs_that_nothing_judges_are_told() -> None:
    gpt2, more = MODELS["gpt2"], Tensor("scores", "float32", ("b", "t"))
    logits = {"logits"}
    assert left(gpt2, logits, Entry("forward", (IDS,), (LOGITS,))) == []
    assert left(gpt2, logits, Entry("forward", (IDS,), (LOGITS, more))) == ["outputs/forward"]
    assert left(gpt2, logits, Entry("forward", (IDS,), (LOGITS, more)), scores="ignored") == []
    assert left(gpt2, logits, Entry("forward", (IDS,), (LOGITS, *CACHE[2:]))) == ["outputs/forward"]
    assert left(gpt2, logits, Entry("forward", (IDS,), (LOGITS, *CACHE[2:])), **{"present.*": "ignored"}) == []
    assert left(gpt2, logits, Entry("forward", (IDS, *CACHE[:2]), (LOGITS, *CACHE[2:]))) == []
    twice = Entry("forward", (IDS,), (LOGITS, Tensor("prediction_logits", "float32", ("b", "t", 19))))
    assert left(gpt2, logits, twice) == ["outputs/forward"]


def test_functions_that_are_not_called_are_told_unless_one_was_chosen() -> None:
    two = [Entry(name, (IDS,), (LOGITS,), body=name) for name in ("forward", "score")]
    same = [Entry(name, (IDS,), (LOGITS,), body="same") for name in ("forward", "serve")]
    assert left(MODELS["gpt2"], {"logits"}, *two) == ["outputs/functions"]
    assert left(MODELS["gpt2"], {"logits"}, *two, function="forward") == []
    assert left(MODELS["gpt2"], {"logits"}, *same) == []


def test_the_vector_of_a_text_is_no_pooled_vector_unless_a_table_says_so() -> None:
    entry = Entry("forward", (IDS,), (Tensor("token_embeddings", "float32", ("b", "t", 8)), SENTENCE))
    assert meanings.of_outputs(entry, BERT, {}) == {"token_embeddings": "hidden"}
    assert meanings.of_outputs(entry, BERT, {"sentence_embedding": "mean"})["sentence_embedding"] == "mean"
    assert left(BERT, {"hidden", "mean"}, entry) == ["outputs/forward"]
    assert left(BERT, {"hidden", "mean"}, entry, sentence_embedding="mean") == []
    with pytest.raises(ValueError, match="sentence_embedding"):
        meanings.of_outputs(Entry("forward", (IDS,), (SENTENCE,)), BERT, {})
    with pytest.raises(ValueError, match="ignored"):
        meanings.of_inputs(entry, BERT, {IDS.name: "ignored"})
