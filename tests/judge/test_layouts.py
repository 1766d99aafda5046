"""Ports that divide a model differently: the components for them, and how `call` declares their calls."""

import dataclasses
import functools
import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expectations import all_by_id, has
from kinds import every
from own_modules import adapter, document, norm, verdict

from reference_numpy import layout, parameters
from rosettaformer.judge import runner
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation import components
from rosettaformer.judge.expectation.components import LAYOUTS, forward_of
from rosettaformer.judge.ports.adapters.call_mapping import CallTable, derived
from rosettaformer.judge.ports.adapters.submodules import found, submodules
from rosettaformer.judge.ports.names import Names
from rosettaformer.judge.ports.port import NotCovered, Port
from rosettaformer.judge.suite import all_cases, attention, layers
from rosettaformer.judge.suite.asked import fitted
from rosettaformer.judge.suite.build import Builder
from rosettaformer.judge.suite.gradients import gradients
from rosettaformer.judge.vectors import golden
from rosettaformer.ports import CLASSIC

CASES = all_by_id()
# variants of the document's port, each with another key of `call`
GRADIENTS = (
    "self_attention_vjp/causal", "self_attention_sublayer_vjp/post", "logits_vjp/bias", "scaled_dot_product_attention_vjp/plain",
)  # fmt: skip
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def port(folder: Path, *edit: str, name: str = "layouts_port") -> Port:
    text = document(name)
    if edit:
        assert text.count(edit[0]) == 1, edit
        text = text.replace(*edit)
    path = folder / f"layouts_{folder.name}.py"
    path.write_text(text)
    return Port(str(path))


def fixed(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"CLASSIC": CLASSIC}
    exec(text[text.index("config = ") :], names)
    config: dict[str, Any] = names["config"]
    return config


def made(config: dict[str, Any], *families: Any, shared: tuple[str, ...] = ()) -> list[Case]:
    found = (case for family in families for case in family.cases(Builder(config, shared)))
    return [case for case in found if has(case.config, config)]


@functools.cache
def asked() -> list[Case]:
    """Returns the cases of the port's config: all forward cases and some gradients."""
    forward = made(fixed(document("layouts_port")), attention, layers)
    return [
        case.at("float64") for case in (*forward, *gradients(case for case in forward if f"{case.component}_vjp/{case.name}" in GRADIENTS))
    ]


@needs_torch
def test_the_documents_port_of_another_division_differs_nowhere(tmp_path: Path) -> None:
    own = port(tmp_path)
    verdicts = Counter((case.component, verdict(case, own.answer)) for case in asked() if case.component in own.components)
    assert {what for _, what in verdicts} == {"pass", "not covered"}
    passed = {component: number for (component, what), number in verdicts.items() if what == "pass"}
    assert passed.keys() == {component for component in own.components if not forward_of(component)} | {
        case.component for case in asked() if forward_of(case.component)
    }
    assert (passed["self_attention"], passed["multi_head_attention"], passed["self_attention_sublayer"]) == (2, 7, 2)


@needs_torch
@pytest.mark.parametrize(
    ("right", "wrong", "seen"),
    every(2, [
        ("self.c_attn(x).chunk(3, -1)", "self.c_attn(x).chunk(3, -1)[::-1]", {"self_attention"}),
        ("torch.arange(keys.size(1)) < lens", "torch.arange(keys.size(1)) <= lens",
         {"multi_head_attention", "self_attention_sublayer", "cross_attention_sublayer", "encoder_layer", "token_encoder"}),
        ("self.layer_norm(q + y), y", "self.layer_norm(k + y) if k.shape == q.shape else self.layer_norm(q) + y, y",
         {"cross_attention_sublayer"}),
        ("self.w_2(torch.relu", "self.w_2(torch.tanh", {"feed_forward_sublayer", "encoder_layer", "token_encoder"}),
        ("self.emb(ids) * self.scale", "self.emb(ids)", {"token_encoder"}),
        ("self.proj(x.flatten(0, 1))", "self.proj(x.transpose(0, 1).flatten(0, 1))", {"logits"}),
    ]),
)  # fmt: skip
def test_a_mistake_in_it_is_seen_where_it_is(tmp_path: Path, right: str, wrong: str, seen: set[str]) -> None:
    own = port(tmp_path, right, wrong)
    cases = [case for case in asked() if case.component in own.components and not forward_of(case.component)]
    assert {case.component for case in cases if verdict(case, own.answer) == "differs"} == seen


@pytest.mark.product
@needs_torch
def test_a_port_that_has_none_of_these_components_is_not_asked_them() -> None:
    cases = [CASES["layer_norm/plain"], *(CASES[name] for name in CASES if name.partition("/")[0] in LAYOUTS)]
    (result,) = runner.run(cases, ["tests/ports/numpy_function.py"], ["float64"])
    assert (result.case, result.status) == ("layer_norm/plain", "pass")
    results = runner.run(cases[1:3], ["tests/ports/numpy_function.py"], ["float64"])
    assert {result.status for result in results} == {"not covered"}


def test_of_results_that_were_made_elsewhere_none_is_missed_of_these_components(tmp_path: Path) -> None:
    (tmp_path / "float64").mkdir()
    results = golden.judge_results(tmp_path, [CASES["layer_norm/plain"], CASES["self_attention/plain"]], ["float64"])
    assert [(result.case, result.status) for result in results] == [("layer_norm/plain", "not given")]


@functools.cache
def narrow() -> list[Case]:
    cases = made(fixed(document("shared_port")), attention, shared=("query.kernel", "key.kernel", "value.kernel"))
    cases = [case for case in cases if case.component == "multi_head_attention"]
    return [case.at("float64") for case in (*cases, *gradients(cases[:3]))]


@needs_torch
def test_the_documents_port_of_shared_kernels_differs_nowhere(tmp_path: Path) -> None:
    own = port(tmp_path, name="shared_port")
    assert own.describe()["shared"] == ("query.kernel", "key.kernel", "value.kernel")
    verdicts = Counter((case.component, verdict(case, own.answer)) for case in narrow())
    assert {what for _, what in verdicts} == {"pass", "not covered"}
    assert verdicts["multi_head_attention", "pass"] >= 3
    assert verdicts["multi_head_attention_vjp", "pass"] == 1


@needs_torch
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("q.size(-1) ** 0.5", "queries.size(-1) ** 0.5"),
        ('"queries.weight", "k i"', '"queries.weight", "i k"'),
        ("x.unflatten(-1, (self.heads, -1))", "x.unflatten(-1, (-1, self.heads)).transpose(2, 3)"),  # every third column belongs to a head
    ],
)
def test_a_mistake_beside_shared_kernels_is_seen(tmp_path: Path, right: str, wrong: str) -> None:
    own = port(tmp_path, right, wrong, name="shared_port")
    assert "differs" in {verdict(case, own.answer) for case in narrow() if not forward_of(case.component)}


def test_a_shared_kernel_is_one_block_for_every_head_and_its_gradient_the_sum() -> None:
    case = next(case for case in narrow() if case.id == "multi_head_attention_vjp/cross")
    kernel = case.parameters["query.kernel"]
    blocks = np.stack([kernel[4 * head : 4 * head + 4, head] for head in range(3)])
    assert np.array_equal(blocks[0], blocks[1])
    assert np.count_nonzero(kernel) == blocks.size
    whole = components.answer(dataclasses.replace(case, shared=()))["parameters.query.kernel"]
    expected = sum(whole[4 * head : 4 * head + 4, head] for head in range(3))
    np.testing.assert_allclose(components.answer(case)["parameters.query.kernel"], expected, rtol=1e-13)


def test_heads_that_share_a_kernel_have_one_block_and_a_width_they_divide() -> None:
    case = CASES["multi_head_attention/square"]
    names = parameters.axes(case.config, "multi_head_attention")
    table = tuple((name, name, "i k" if name == "query.kernel" else axes) for name, axes in names.items())
    with pytest.raises(ValueError, match=r"query\.kernel"):
        layout.to_native(case.parameters, table, case.config, "multi_head_attention")
    other = dataclasses.replace(case, name="of a checkpoint")
    (found,) = fitted([other], {}, ("query.kernel",))
    assert "query.kernel" in found.excluded
    cases = [case for case in all_cases(shared=("query.kernel",)) if case.component == "multi_head_attention"]
    reasons = {case.excluded for case in cases if case.config.model_width == 13 and case.config.heads == 3}
    assert any("query.kernel" in reason for reason in reasons)
    assert "" not in reasons


def test_numpy_functions_have_these_components_too(tmp_path: Path) -> None:
    path = tmp_path / "numpy_layouts.py"
    path.write_text("from rosettaformer.judge.expectation.components import answer as self_attention\n")
    own = Port(str(path))
    cases = [case.at("float64") for case in CASES.values() if case.component == "self_attention"]
    assert {verdict(case, own.answer) for case in cases} == {"pass"}


def test_if_and_for_say_which_cases_a_module_answers() -> None:
    with pytest.raises(ValueError, match=r"for.*softmax.*b"):
        CallTable({"softmax": {"x": "logits", "for": "b"}})
    assert called({"x": "x_btd", "if": "causal"}, x_btd=1.0, causal=True) == {"x": 1.0}
    with pytest.raises(NotCovered, match=r"self_attention .*causal"):
        called({"x": "x_btd", "if": "causal"}, x_btd=1.0)
    bare = {"x": "x_btd", "if": lambda inputs: inputs["mask_bhts"] is None}
    assert called(bare, x_btd=1.0) == {"x": 1.0}
    with pytest.raises(NotCovered, match='"if"'):
        called(bare, x_btd=1.0, mask_bhts=np.ones(1))


def called(row: dict[str, Any], function: Any = lambda **own: own, **inputs: Any) -> Any:
    return CallTable({"self_attention": row}).around(function, CASES["self_attention/plain"], list)(**inputs)


def test_return_picks_and_what_it_looks_at_is_taken() -> None:
    def pair(x: float) -> tuple[float, float]:
        return x, 2 * x

    row = {"x": "x_btd", "return": lambda output, inputs: output if inputs["return_weights"] else output[0]}
    assert called(row, pair, x_btd=1.0) == 1.0
    assert called(row, pair, x_btd=1.0, return_weights=True) == (1.0, 2.0)
    with pytest.raises(NotCovered, match="return_weights"):
        called({"x": "x_btd", "return": lambda output, inputs: output[0]}, pair, x_btd=1.0, return_weights=True)
    with pytest.raises(NotCovered, match="causal"):
        called({"x": "x_btd", "return": lambda output, inputs: output[2]}, pair, x_btd=1.0, causal=True)


@pytest.mark.parametrize(
    ("case", "name", "lengths"),
    [
        ("multi_head_attention/ragged", "length_b", [7, 5, 3]),
        ("multi_head_attention/cross", "length_b", None),
        ("multi_head_attention/left_padding", "length_b", "mask_bhts"),
        ("decoder_layer/post_ragged", "self_length_b", [5, 3, 1]),
        ("decoder_layer/post_ragged", "cross_length_b", [7, 5, 3]),
        ("token_encoder/explicit_mask", "source_length_b", [7, 5, 3]),
        ("token_decoder/post", "target_length_b", [5, 3, 1]),
    ],
)
def test_lengths_say_what_a_mask_says(case: str, name: str, lengths: Any) -> None:
    made, refused = derived(CASES[case])
    if isinstance(lengths, str):
        assert lengths in refused[name]
        return
    assert (None if made[name] is None else made[name].tolist()) == lengths  # type: ignore[union-attr]


def test_what_stands_for_an_input_stands_in_a_function_of_the_inputs() -> None:
    case = CASES["positional_encoding/odd_width"]
    calls = CallTable({"positional_encoding": {"x": lambda inputs: inputs["zeros_btd"].swapaxes(0, 1)}})
    given = calls.derived(case)
    assert given["zeros_btd"] is not None
    own = calls.around(lambda x: x, case, list)(**case.inputs, **given)
    assert own.shape == given["zeros_btd"].swapaxes(0, 1).shape
    assert calls.adds_positions()
    assert not CallTable({"positional_encoding": {"x": lambda inputs: inputs["position_bt"]}}).adds_positions()
    masked = CallTable({"multi_head_attention": {"q": "query_btd", "k": "memory_bsd", "n": lambda inputs: inputs["length_b"]}})
    case = CASES["multi_head_attention/left_padding"]
    with pytest.raises(NotCovered, match="mask_bhts"):
        masked.around(lambda **own: own, case, list)(**case.inputs, **masked.derived(case))


@pytest.mark.parametrize(
    ("names", "own"),
    [
        (["mha.W_q.weight", "mha.W_k.weight"], "mha.W_q.weight"),
        (["W_q.weight", "mha.W_q.weight"], "W_q.weight"),
        (["a.W_q.weight", "b.W_q.weight"], "W_q.weight"),  # either could be meant
        (["mha.MW_q.weight"], "W_q.weight"),
    ],
)
def test_a_name_is_the_end_of_the_only_one_that_fits(names: list[str], own: str) -> None:
    table = (("query.kernel", "W_q.weight", "(h k) d"),)
    assert found(table, names.__contains__, lambda: names) == (("query.kernel", own, "(h k) d"),)


def test_tables_of_attention_and_of_norms_are_one_and_within_a_part_more_steps_may_stand_between() -> None:
    table = (("layers.1.query.kernel", "blocks.1.W_q.weight", "(h k) d"),)
    names = [f"blocks.{index}.mha.W_q.weight" for index in (0, 1, 11)]
    assert found(table, names.__contains__, lambda: names)[0][1] == "blocks.1.mha.W_q.weight"
    row = ("query.kernel", "q", "(h k) d")
    config = CASES["self_attention/causal_no_bias"].config
    rest = tuple((name, name[0], axes) for name, axes in (("key.kernel", "d g k"), ("value.kernel", "d g e"), ("output.kernel", "h e d")))
    for table, component in (("self_attention", "multi_head_attention"), ("multi_head_attention", "self_attention")):
        assert Names({table: (row, *rest)}).table(component, config)[0] == row
    scale, alone = ("scale", "weight", "d"), config.replace(norm_offset=False)
    for table, component in (("layer_norm", "rms_norm"), ("rms_norm", "layer_norm")):
        assert Names({table: (scale,)}).table(component, alone) == (scale,)


@pytest.mark.parametrize("kind", every(4, ["torch", "nnx", "linen", "tf"]))
def test_the_end_of_a_name_is_found_in_every_framework(kind: str) -> None:
    """Also for its gradient."""

    def build(config: Any, dtype: Any) -> Any:
        if kind == "torch":
            import torch

            return torch.nn.Sequential(torch.nn.LayerNorm(config.model_width, config.epsilon))
        if kind == "tf":
            import keras

            return keras.Sequential([keras.layers.LayerNormalization(epsilon=config.epsilon, dtype=dtype.name)])
        from flax import linen, nnx

        inner = norm(kind, config.model_width, config.epsilon, dtype, 3)
        return nnx.Sequential(inner) if kind == "nnx" else linen.Sequential([inner])

    scale, offset = ("weight", "bias") if kind == "torch" else ("gamma", "beta")
    axes = "d" if kind in ("torch", "tf") else "1 1 d"
    own = adapter(
        kind if kind in ("torch", "tf") else "jax",
        components={"layer_norm": build},
        weights={"layer_norm": (("scale", scale, axes), ("offset", offset, axes))},
        call={"layer_norm": {{"torch": "input", "tf": "inputs"}.get(kind, "x"): "x_btd"}},
    )
    for component in ("layer_norm", "layer_norm_vjp"):
        assert verdict(CASES[f"{component}/plain"].at("float64", mode="eager"), own.run) == "pass"


@needs_torch
def test_a_pooler_and_a_sublayer_with_its_norm_are_not_the_components_whose_names_they_have(tmp_path: Path) -> None:
    import torch

    from impl_torch.transformer import Transformer
    from impl_torch.values import Text

    class Model(Transformer):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.pooler = torch.nn.Linear(config.model_width, config.model_width)

        def forward(self, source: Any, source_mask_bs: Any = None, segment_bs: Any = None) -> Any:
            return torch.tanh(self.pooler(self.encode(Text(source, source_mask_bs, segment_bs))[:, 0]))

    own = adapter("torch", components={"pool": lambda config, dtype: Model(config)})
    case = CASES["pool/bert"].at("float64")
    assert verdict(case, own.run) == "pass"
    (run,) = own.trace(case)
    assert {"", "encoder", "source_embedding"} <= run.keys()
    assert "pooler" not in run
    case = next(case for case in asked() if case.id == "encoder_layer/post")
    (run,) = port(tmp_path).trace(case)
    assert {"", "self_attention", "self_attention_norm", "feed_forward_norm"} <= run.keys()
    assert "feed_forward" not in run


@pytest.mark.parametrize(
    ("path", "native", "seen"),
    [
        ("feed_forward", "ffn", False),
        ("feed_forward", "", False),  # inlined in the layer
        ("self_attention", "attn", True),
        ("self_attention_norm", "norm", True),
        ("softmax", "attn.soft", True),
    ],
)
def test_a_module_is_more_than_a_component_where_it_holds_a_parameter_of_another(path: str, native: str, seen: bool) -> None:
    table = (
        ("feed_forward.hidden.kernel", "ffn.up", "d f"),
        ("feed_forward_norm.scale", "ffn.norm.g", "d"),
        ("self_attention.query.kernel", "attn.q", "d h k"),
        ("self_attention_norm.scale", "norm.g", "d"),
        ("final_norm.scale", "norm.g", "d"),  # one norm for both
    )
    names = Names({"encoder_layer": ((path, native),)})
    modules = submodules(lambda own: own, [path], CASES["encoder_layer/post"], names, table)
    assert modules == ({path: native} if seen else {})
