"""Ports as users have them: tables by component, custom arguments, positions added inside, Linen modules."""

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from expectations import all_by_id
from in_process import InProcess
from kinds import conformance, every
from messages import mentions
from own_modules import adapter, blocks, document, norm, verdict

from reference_numpy import layout, parameters, preset
from reference_numpy.positional_encoding import positional_encoding
from rosettaformer.judge import runner
from rosettaformer.judge.case import Case
from rosettaformer.judge.diagnosis.divergence import backward, divergence
from rosettaformer.judge.expectation import components
from rosettaformer.judge.ports.adapters.call_mapping import CallMapping, CallTable
from rosettaformer.judge.ports.messages import plain
from rosettaformer.judge.ports.names import Names
from rosettaformer.judge.ports.port import NotCovered, Port, load_file
from rosettaformer.judge.ports.port_server import SideEffects, reply
from rosettaformer.judge.ports.session import open_worker
from rosettaformer.judge.suite import all_cases

CASES = all_by_id()
CONFIG = preset(
    "tiny", encoder_layers=2, decoder_layers=2, attention_bias=True, output_bias=True, share_embeddings=False, tie_logits=False
)  # fmt: skip


def test_a_name_is_that_of_the_innermost_component_within_what_the_others_call_it() -> None:
    names = Names(
        {
            "layer_norm": (("scale", "g", "d"), ("offset", "b", "d")),
            "multi_head_attention": (("kernel", "w", "d h k"), ("kernel", "w", "d g k"), ("kernel", "w", "d g e"), ("kernel", "w", "h e d"),
                                     ("bias", "c", "h k"), ("bias", "c", "g k"), ("bias", "c", "g e"), ("bias", "c", "d"),
                                     ("query.kernel", "wq", "d h k")),
            "encoder_layer": (("self_attention", "attn"), ("feed_forward", ""), ("feed_forward_norm", "n.2"),
                              ("hidden.kernel", "up", "d f")),
            "decoder_layer": (("self_attention", "masked"), ("cross_attention", "cross")),
            "feed_forward": (("hidden.bias", "up_bias", "f"), ("output.kernel", "down", "f d"), ("output.bias", "down_bias", "d")),
            "encoder": (("layers", "blocks"),),
            "transformer": (("encoder.layers", "enc"), ("self_attention_norm", "n1"), ("self_attention", "never"),
                            ("hidden.kernel", "fc", "d f"), ("table", "t", "v d"),
                            ("source_embedding", "src"), ("logits.kernel", "head", "d v"), ("logits.bias", "head_bias", "v")),
        }
    )  # fmt: skip
    own = {name: native for name, native, _ in names.table("transformer", CONFIG)}
    expected = {
        "source_embedding.table": "src.t",
        "target_embedding.table": "target_embedding.t",
        "encoder.layers.1.self_attention.query.kernel": "enc.1.attn.wq",  # the longest row of the table
        "encoder.layers.1.self_attention.key.kernel": "enc.1.attn.key.w",
        "encoder.layers.0.self_attention_norm.scale": "enc.0.n1.g",  # the step is in a row of the outermost component
        "encoder.layers.0.feed_forward_norm.offset": "enc.0.n.2.b",
        "encoder.layers.0.feed_forward.hidden.kernel": "enc.0.up",  # the layer's table decides, although the model's table also has a row
        "encoder.layers.0.feed_forward.output.bias": "enc.0.down_bias",
        "decoder.layers.1.feed_forward.hidden.kernel": "decoder.layers.1.feed_forward.fc",
        "decoder.layers.1.cross_attention.value.bias": "decoder.layers.1.cross.value.c",
        "logits.kernel": "head",
    }
    assert {name: own[name] for name in expected} == expected
    assert own.keys() == parameters.axes(CONFIG).keys()
    assert names.path("transformer", "encoder.layers.1.self_attention") == "enc.1.attn"
    assert names.path("encoder", "layers.1.self_attention.softmax") == "blocks.1.attn.softmax"
    assert names.path("encoder_layer", "feed_forward") == ""
    assert names.table("encoder_layer", CONFIG)[0] == ("self_attention.query.kernel", "attn.wq", "d h k")


def test_one_table_is_read_as_it_always_was() -> None:
    table = (*layout.CANONICAL, ("0.self_attention.query.kernel", "0.first.q", "(h k) d"))
    rows = Names(table).table("transformer", CONFIG)
    assert [(own, axes) for _, own, axes in rows] == [layout.native(name, axes, table) for name, axes in parameters.axes(CONFIG).items()]
    paths = (("encoder.layers", "blocks"), ("self_attention", "attn"), ("0.feed_forward", "0.mlp"), ("feed_forward", "ff"))
    names = Names(table, paths)
    assert names.path("transformer", "encoder.layers.1.self_attention") == "blocks.1.attn"
    assert names.path("transformer", "encoder.layers.0.feed_forward") == "blocks.0.mlp"
    assert names.path("transformer", "encoder.layers.1.feed_forward") == "blocks.1.ff"


@pytest.mark.parametrize(
    ("table", "given", "message"),
    [
        (Names, {"layer_nrm": ()}, r"component of weights .*got 'layer_nrm' \(nearest: layer_norm\)"),
        (Names, {"layer_norm": (("scale",),)}, r"layer_norm.*\('scale',\)"),
        (Names, {"layer_norm": "scale"}, r"layer_norm.*'scale'"),
        (Names, {"layer_norm": (("scale", "", "d"),)}, r"\('scale', '', 'd'\)"),
        (Names, {"layer_norm": (("scale", "a", "(hk) d"),)}, "layer_norm.*'hk'.*"),
        (CallTable, {"layer_nrm": {}}, r"component of call .*got 'layer_nrm' \(nearest: layer_norm\)"),
        (CallTable, {"layer_norm": {"x": "x_bt"}}, r"layer_norm.*x_btd; got 'x_bt'"),
        (CallTable, {"layer_norm": {"x": 3}}, r"layer_norm.*'x': 3"),
        (CallTable, 3, r"call.*3"),
        (CallTable, {"layer_norm": {"x": "x_btd", "return": "output"}},
         "\"return\".*layer_norm.*; got 'output'"),
        (CallTable, {"layer_norm": {"x": "x_btd", "for": "t"}},
         '"for".*layer_norm.* "b", .*; got \'t\''),
    ],
)  # fmt: skip
def test_a_bad_table_is_one_clear_error(table: Any, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        table(given)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_row_says_where_it_may_stand_and_an_axis_of_size_one_must_be_one() -> None:
    names = Names({"encoder_layer": (("scale", "a", "d"),), "layer_norm": (("offset", "b", "f"),)})
    with pytest.raises(ValueError, match=r"self_attention\.query\.kernel.*'d h k'") as caught:
        names.table("encoder_layer", CONFIG)
    assert mentions(str(caught.value), "multi_head_attention … encoder_layer")
    with pytest.raises(ValueError, match="axes '1 d' must have shape \\(1, 3\\); got \\(2, 3\\)"):
        layout.relayout(np.ones((2, 3)), "1 d", "d", {"d": 3})


AXES = [("d f", "1 d f"), ("h k", "(1 h k) 1"), ("1 d f 1", "f 1 d")]


@pytest.mark.parametrize(("from_axes", "to_axes"), AXES)
def test_an_axis_of_size_one_comes_and_goes(from_axes: str, to_axes: str) -> None:
    sizes = {"d": 3, "f": 4, "h": 2, "k": 5}
    array = np.random.default_rng(0).standard_normal(layout.shape(from_axes, sizes))
    there = layout.relayout(array, from_axes, to_axes, sizes)
    assert there.shape == layout.shape(to_axes, sizes)
    np.testing.assert_array_equal(layout.relayout(there, to_axes, from_axes, sizes), array)
    table = (("kernel", "w", "1 f d"),)
    kernel = {"kernel": np.arange(12.0).reshape(3, 4)}
    assert layout.fitting("kernel", "d f", table) == table[0]
    assert layout.relayout(kernel["kernel"], "d f", "1 f d", sizes).tolist() == [kernel["kernel"].T.tolist()]


def called(row: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    function = CallTable({"multi_head_attention": row}).around(lambda **own: own, CASES["multi_head_attention/cross"], list)
    assert isinstance(function, CallMapping)
    return function(**inputs)


def test_own_arguments_are_inputs_or_functions_of_all_of_them_and_positions_are_added() -> None:
    row = {"q": "query_btd", "kv": "memory_bsd", "mask": "mask_bhts", "both": lambda inputs: (inputs["causal"], inputs.get("bias_bhts"))}
    assert called(row, query_btd=1.0, memory_bsd=2.0) == {"q": 1.0, "kv": 2.0, "mask": None, "both": (False, None)}
    assert called(row, query_btd=1.0, memory_bsd=2.0, mask_bhts=3, causal=True, bias_bhts=4)["both"] == (True, 4)
    assert called(row, query_btd=1.0, memory_bsd=2.0, return_weights=False, keep_bhts=None, training=False)["training"] is False
    with pytest.raises(KeyError, match=r"mask .*query_btd, memory_bsd, "):
        called({"m": lambda inputs: inputs["mask"]}, query_btd=1.0)
    calls = CallTable({"positional_encoding": {"x": "zeros_btd"}})
    for position in ([[0, 1, 2], [1, 2, 3]], [[1, 2, 3]], [0, 1, 2]):
        case = Case("one", "positional_encoding", CONFIG, {"position_bt": np.array(position)})
        with pytest.raises(NotCovered, match="positions 0, 1, 2"):
            calls.around(lambda x: x, case, list)(**case.inputs, **calls.derived(case))
    zeros = calls.derived(Case("one", "positional_encoding", CONFIG, {"position_bt": np.array([[0, 1, 2]] * 2)}, dtype="float32"))[
        "zeros_btd"
    ]
    assert zeros is not None
    assert (zeros.shape, zeros.dtype, zeros.any()) == ((2, 3, CONFIG.model_width), np.float32, False)


@pytest.mark.parametrize(
    ("inputs", "left"),
    [({"causal": True}, "causal"), ({"bias_bhts": 1.0, "return_weights": True}, "bias_bhts, return_weights")],
)
def test_an_input_that_nothing_takes_is_not_covered(inputs: dict[str, Any], left: str) -> None:
    with pytest.raises(NotCovered, match=f"multi_head_attention .* {left}$"):
        called({"q": "query_btd", "kv": lambda inputs: inputs["memory_bsd"]}, query_btd=1.0, memory_bsd=2.0, **inputs)


# a function's handling of a case that requests unpadding -> whether it differs; None: not covered
TAKES = {
    "{name: i[name] for name in ('source', 'target')}": None,
    "i": False,
    "{**i, 'skip_padding': False}": True,
}


@pytest.mark.parametrize("given", TAKES)
def test_a_function_that_does_not_look_at_skip_padding_does_not_cover_it(tmp_path: Path, given: str) -> None:
    differs = TAKES[given]
    path = tmp_path / f"skip_padding_{differs}.py"
    path.write_text(f"""from reference_numpy.parameters import nest
from rosettaformer.judge.expectation.components import function_of

def transformer(case):
    i = case.inputs
    return function_of("transformer")(nest(case.parameters), case.config, **({given}))
""")
    case, port = CASES["transformer/skip_padding_left_padding"].at("float64"), Port(str(path))
    if differs is None:
        with pytest.raises(NotCovered, match=r"transformer .*skip_padding$"):
            port.answer(case)
    else:
        assert np.array_equal(port.answer(case), components.answer(case)["output"]) != differs


@pytest.mark.conformance
def test_the_documents_port_covers_several_configs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "configs_port.py").write_text(document("configs_port"))
    port = str(tmp_path / "configs_port.py")
    cases = [case for case in all_cases(Port(port).config, grad=False) if case.component in ("multi_head_attention", "encoder_layer")]
    results = runner.run(cases, [port], ["float64"])
    assert {result.status for result in results} == {"pass", "not covered"}
    configs = [case.config for case, result in zip(cases, results, strict=True) if result.status == "pass"]
    for field in ("attention_bias", "key_value_heads", "norm_placement"):
        assert len({getattr(config, field) for config in configs}) > 1, field


def test_the_documents_other_blocks_are_of_the_port_file() -> None:
    whole, call, refusal, excerpt = blocks("ports.md")
    assert document("configs_port").endswith(f"\n\n{whole}")
    linked = {line.strip() for line in document("layouts_port").splitlines()}
    assert {line.strip() for line in excerpt.splitlines()} <= linked
    exec(call, names := {})
    assert CallTable(names["call"]).arguments("encoder_layer") == ["x"]
    with pytest.raises(NotCovered, match="right"):
        exec(refusal, {})
    (paths,) = blocks("diagnosis.md")
    exec(paths, names)
    assert Names({"encoder": ()}, names["module_paths"]).path("encoder", "layers.0.feed_forward") == "layers.0.mlp"


MISTAKES = {
    "": "",
    "positions": "port.PositionalEncoding.forward = lambda self, x: x + self.encoding[:, 1 : 1 + x.size(1)]",
    "scaled first": "port.PositionalEncoding.forward = lambda self, x: 2 * x + self.encoding[:, : x.size(1)]",
    "norm": "own = port.F.layer_norm; port.F.layer_norm = lambda *given: own(*given[:4], 1e-2)",
}
TRACED = """
import sys
sys.path.insert(0, "tests/ports/wild")
import seq2seq_from_scratch as port

for side in ("encoder", "decoder"):
    port.weights["transformer"] += ((f"{side}.positional_encoding", f"{side}.position_encoding"),)
MISTAKE
globals().update(vars(port))
"""


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("mistake", "first", "dtype"),
    [
        ("", None, "float32"),
        conformance("", None, "float64"),
        ("positions", "encoder.positional_encoding", "float64"),
        conformance("scaled first", "", "float32"),
        conformance("norm", "encoder.layers.0.self_attention_norm", "float32"),
    ],
)
def test_a_tutorial_is_traced_by_its_tables(tmp_path: Any, mistake: str, first: str | None, dtype: str) -> None:
    """Values, keys and queries have one shape: only `call` tells the order in which the attention takes them."""
    pytest.importorskip("torch")
    name = f"tutorial_{mistake.replace(' ', '_')}_"
    (tmp_path / f"{name}.py").write_text(TRACED.replace("MISTAKE", MISTAKES[mistake]))
    with contextlib.closing(open_worker(str(tmp_path / f"{name}.py"), threads=1)) as worker:
        case = next(case for case in all_cases(worker.greeting[1]["config"]) if case.id == "transformer/same_length")
        found = divergence(worker, case, dtype)
        gradients = backward(worker, found, case) if not mistake else None
    assert (None if found.first is None else found.first.path) == first, found.sentence
    assert found.untraced == ("source_embedding", "encoder", "target_embedding", "decoder", "logits")
    positions = {row.path: row for row in found.rows}["encoder.positional_encoding"]
    assert positions.free is None
    assert positions.forced is not None
    assert positions.inputs_agree
    if gradients is not None:
        assert not any(row.fails for row in found.rows)
        assert gradients.first is None and "18 components" in gradients.sentence


def own_norm(kind: str, axes: str, scale: str = "gamma", **row: str) -> Any:
    """Returns the adapter of a norm whose parameters have these axes; with one axis it is called once per row."""
    return adapter(
        "tf" if kind == "tf" else "jax",
        components={"layer_norm": lambda config, dtype: norm(kind, config.model_width, config.epsilon, dtype, len(axes.split()))},
        weights={"layer_norm": (("scale", scale, axes), ("offset", "beta", axes))},
        call={"layer_norm": {"x": "x_btd"} | row},
        modes=("eager", "compiled"),
    )


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("component", ["layer_norm", "layer_norm_vjp"])
@pytest.mark.parametrize("row", [conformance({}), {"for": "b"}], ids=["batch", "row"])
@pytest.mark.parametrize("kind", ["tf", "nnx", "linen"])
def test_modules_of_every_framework_have_arguments_and_axes_of_their_own(kind: str, row: dict[str, str], component: str, mode: str) -> None:
    """A module without a batch axis is called once per row."""
    own = own_norm(kind, "d" if row else "1 1 d", **row)
    assert verdict(CASES[f"{component}/plain"].at("float64", mode=mode), own.run) == "pass"
    if row and component == "layer_norm":
        assert verdict(CASES["layer_norm/batch_0"].at("float64"), own.run) == "not covered"
        with pytest.raises(NotCovered, match="row"):
            own.trace(CASES["layer_norm/plain"].at("float64"))


@pytest.mark.parametrize(("kind", "lacks"), [("nnx", "no variable gama for scale"), ("linen", r"no parameter gama \(nearest: gamma\)")])
def test_what_a_jax_module_has_is_said_where_the_table_names_something_else(kind: str, lacks: str) -> None:
    with pytest.raises(ValueError, match=f"the module has {lacks}") as caught:
        own_norm(kind, "1 1 d", "gama").run(CASES["layer_norm/plain"].at("float64"))
    assert "gamma" in str(caught.value)


@pytest.mark.parametrize("framework", ["torch", "tf", "jax"])
def test_positions_are_added_to_zeros_of_every_framework(framework: str) -> None:
    def add(x: Any) -> Any:
        table = positional_encoding(np.arange(x.shape[1])[None], x.shape[2])
        if framework == "torch":
            import torch

            return x + torch.from_numpy(table)
        return x + table

    port = adapter(
        framework, components={"positional_encoding": lambda config, dtype: add}, call={"positional_encoding": {"x": "zeros_btd"}}
    )
    verdicts = [verdict(case.at("float64"), port.run) for case in CASES.values() if case.component == "positional_encoding"]
    assert {*verdicts} == {"pass", "not covered"}
    assert verdicts.count("pass") >= 3


def keras_norm(before: Callable[[str], Any]) -> Any:
    """Returns the adapter of a layer within a layer. before: receives the name of each when it is called."""

    def build(config: Any, dtype: Any) -> Any:
        import keras

        class Layer(keras.layers.Layer):
            def __init__(self, name: str, inner: Any) -> None:
                super().__init__(dtype=dtype.name, name=name)
                self.inner = inner

            def call(self, x_btd: Any) -> Any:
                before(self.name)
                return self.inner(x_btd)

        norm = keras.layers.LayerNormalization(epsilon=config.epsilon, dtype=dtype.name)
        return Layer("Outer", Layer("Inner", norm))

    rows = (("scale", "inner.inner.gamma", "d"), ("offset", "inner.inner.beta", "d"))
    return adapter("tf", components={"layer_norm": build}, weights={"layer_norm": rows})


def test_a_keras_layer_of_layers_is_called_once_to_be_built_and_once_to_answer() -> None:
    """Keras makes no further call, which would trace each layer before its call, and its sublayers again."""
    calls: list[str] = []
    assert verdict(CASES["layer_norm/plain"].at("float64"), keras_norm(calls.append).run) == "pass"
    assert calls == ["Outer", "Inner"] * 2


def test_not_covered_within_a_keras_layer_is_its_own_words() -> None:
    def refuse(name: str) -> None:
        if name == "Inner":
            raise NotCovered("no such thing")

    port = keras_norm(refuse)
    asked, (case,) = SimpleNamespace(answer=port.run, module=port.port), plain([CASES["layer_norm/plain"]])
    assert reply(asked, SideEffects(), "answer", case) == ("not covered", "no such thing")


LINEN = Path(__file__).parents[1] / "ports/wild/linen_seq2seq.py"


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("right", "wrong", "first", "last"),
    [
        ("", "", None, None),
        conformance(" / np.sqrt(depth).astype(query.dtype)", "", "layers.0.self_attention", None),
        conformance("return x + drop()(y)", "return inputs + drop()(y)", "layers.0", None),
        ('name="mlp")(y)', 'name="mlp")(jax.lax.stop_gradient(y))', None, "layers.1"),
    ],
)
def test_linen_modules_are_traced(tmp_path: Path, right: str, wrong: str, first: str | None, last: str | None) -> None:
    pytest.importorskip("flax")
    (tmp_path / "a_linen_port.py").write_text(LINEN.read_text().replace(right, wrong))
    worker = InProcess(str(tmp_path / "a_linen_port.py"))
    case = next(case for case in all_cases(worker.greeting[1]["config"]) if case.id == "encoder/final_norm")
    found = divergence(worker, case, "float64")
    gradients = backward(worker, found, case)
    assert (None if found.first is None else found.first.path) == first, found.sentence
    assert (None if gradients.first is None else gradients.first.path) == last, gradients.sentence
    assert gradients.sentence.endswith("between them") == bool(last)
    assert found.untraced == ()
    assert len(found.rows) == 12  # the encoder, its two layers with four parts each, and the last norm
    assert all(row.gradients for row in gradients.rows)


ASKED = itertools.product(("encoder_layer/pre", "encoder/final_norm", "encoder_vjp/final_norm"), ("eager", "compiled"))


@pytest.mark.parametrize(("name", "mode"), every(6, ASKED))
def test_linen_modules_conform(name: str, mode: str) -> None:
    pytest.importorskip("flax")
    given = {name: getattr(load_file(LINEN), name) for name in ("components", "weights", "call", "config")}
    case = next(case for case in all_cases(given["config"], grad=True) if case.id == name)
    assert verdict(case.at("float64", mode=mode), adapter("jax", **given, modes=("compiled", "eager")).run) == "pass"
