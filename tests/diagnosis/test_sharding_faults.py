"""Every fault on a mesh is named from its outputs, and nothing else is named."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from expectations import store
from kinds import conformance, every
from messages import mentions

from reference_numpy.sharding import Mesh
from rosettaformer.commands.explain import explain
from rosettaformer.judge.case import REAL, Case
from rosettaformer.judge.catalogue import all_defects, injected
from rosettaformer.judge.catalogue.sharded import Fault, all_faults, at, over_data
from rosettaformer.judge.diagnosis.findings import TimeIsUp, Verdict
from rosettaformer.judge.diagnosis.sharding import Reply, Said, said
from rosettaformer.judge.diagnosis.sharding.fault_search import explanations, predicted
from rosettaformer.judge.expectation import components
from rosettaformer.judge.expectation.mesh import OPERATIONS, answer
from rosettaformer.judge.expectation.orders import order, shuffled
from rosettaformer.judge.suite.meshes import mesh_cases

MESH = "data=2,model=4"
OLMO = ("transformer/sharded_olmo2", "transformer_vjp/sharded_olmo2")
LOSS = ("training_loss_vjp/sharded_gpt2", "training_loss/sharded_gpt2", "transformer/sharded_gpt2")
# cases that reveal a fault if olmo2 does not: biases, a loss, ties, dropout, clipping
SHOWN_BY = {
    "SHD4": ("transformer/sharded_gpt2", "transformer_vjp/sharded_gpt2"),
    "SHD6": ("transformer_vjp/sharded_qwen3",),
    **dict.fromkeys(("SHD12", "SHD13", "SHD16", "SHD20", "SHD21", "SHD27"), LOSS),
    **dict.fromkeys(("SHD18", "SHD19"), (*LOSS, "transformer_vjp/sharded_gpt2")),
    "SHD23": ("transformer_vjp/sharded_gpt2",),
    "SHD24": ("training_steps/sharded_paper_keep",),
    "SHD25": ("training_loss/sharded_paper_keep", "training_loss_vjp/sharded_paper_keep"),
}
# the second of three parts of the rows has labels, the second of two has none
MESHES = dict.fromkeys(("SHD16", "SHD24"), "data=2,model=2") | dict.fromkeys(("SHD18", "SHD19", "SHD20"), "data=3,model=2")
HYPOTHESES = [one for fault in all_faults().values() for one in fault.hypotheses]
FIRSTS = [next(one for one in HYPOTHESES if one.id == id_) for id_ in ("SHD4", "SHD19")]
# title words of variants that the suite's cases, or that mesh, cannot tell from another variant
ALIKE = {
    "key norms use": None,  # there are fewer key heads than devices on the model axis
    "and of their input": ("SHD1",),
}


@functools.cache
def _cases(mesh: str) -> Mapping[str, Case]:
    return {case.id: case.at("float64") for case in mesh_cases([Mesh.parse(mesh)])}


def _replies(ids: Sequence[str], gives: Callable[[Case], Mapping[str, np.ndarray]], mesh: str = MESH) -> list[Reply]:
    cases = [_cases(mesh)[id_] for id_ in ids]
    return [Reply(case, store().expect(case), gives(case)) for case in cases]


def _of(fault: Fault, ids: Sequence[str], mesh: str = MESH) -> Said | None:
    return said(_replies(ids, lambda case: answer(case, fault.operations), mesh))


def _title(fault: Fault) -> str:
    return f"{fault.id}-{fault.title[:30]}"


@pytest.mark.parametrize("fault", [one if one in FIRSTS else conformance(one) for one in HYPOTHESES], ids=_title)
def test_a_fault_is_named(fault: Fault, record_property: Callable[[str, object], None]) -> None:
    found = _of(fault, SHOWN_BY.get(fault.id, OLMO), MESHES.get(fault.id, MESH))
    wanted = next((ids for words, ids in ALIKE.items() if words in fault.title), (fault.id,))
    if wanted is None:
        assert found is None
        return
    assert found is not None and found.ids == wanted
    assert found.verdict == Verdict.EXPLAINED and fault.id in found.text
    assert any(f"explain {fault.id}" in line for line in found.lines)  # the reference has no framework
    record_property("mutants named", 1)


PLACES = [
    ("decoder.layers.1.feed_forward", "SHD1", "decoder.layers.1.feed_forward_norm.offset"),
    conformance("feed_forward", "SHD1", "decoder.layers.1.feed_forward_norm.offset"),
    conformance("self_attention", "SHD1", "decoder.layers.1.self_attention_norm.offset"),
    conformance("feed_forward_norm and self_attention_norm", "SHD17", ""),  # without the last norm
]


@pytest.mark.parametrize(("place", "id_", "first"), PLACES)
@pytest.mark.conformance
def test_a_fault_at_some_places_is_named_there(place: str, id_: str, first: str) -> None:
    fault = dataclasses.replace(all_faults()[id_], place=place)
    found = _of(fault, ("transformer_vjp/sharded_gpt2", "transformer/sharded_gpt2"))
    assert found is not None and found.ids == (id_,)
    assert all(any(words in line for line in found.lines) for words in (place, first))


# the only place of a fault, the unsplit tables, and the description: the gradient of the logits shows whether tables are unsplit
BOTH = ("embeddings", "logits")
WHOLE = [
    ("self_attention", ("embeddings",), OLMO, "embeddings whole over model"),
    ("self_attention", BOTH, OLMO, "embeddings whole over model"),
    ("", BOTH, OLMO, "logits"),
    ("", BOTH, ("transformer_vjp/sharded_gpt2",), ""),  # where they are tied
]


@pytest.mark.conformance
@pytest.mark.parametrize("row", WHOLE)
def test_a_fault_is_named_where_tables_are_whole(row: tuple[Any, ...]) -> None:
    place, whole, ids, layout = row
    fault = dataclasses.replace(all_faults()["SHD1"], place=place)
    found = said(_replies(ids, lambda case: answer(case, fault.operations, whole)))
    assert found is not None and "SHD1" in found.text and (found.ids == ("SHD1",) or not layout)
    assert any(layout in line for line in found.lines)
    assert said(_replies(ids, lambda case: answer(case, whole=whole))) is None


def test_only_the_answers_of_one_component_may_have_it() -> None:
    fault = all_faults()["SHD19"]
    ids = ("training_loss_vjp/sharded_gpt2", "transformer_vjp/sharded_gpt2")
    found = said(_replies(ids, lambda case: answer(case, fault.operations if "loss" in case.component else OPERATIONS)))
    assert found is not None and any("training_loss_vjp" in line for line in found.lines) and found.ids == ("SHD19",)


@pytest.mark.conformance
def test_what_no_case_tells_apart_is_said_together_without_a_fix() -> None:
    ids = ["transformer_vjp/sharded_gpt2", "training_loss/sharded_gpt2"]
    alone, both = (_of(all_faults()["SHD18"], ids[:count], "data=3") for count in (1, 2))
    assert not any("without --mesh" in line for one in (alone, both) if one for line in one.lines)
    assert alone is not None and alone.ids == ("SHD18", "SHD20") and alone.verdict == Verdict.INDISTINGUISHABLE
    assert not any(line.startswith("fix") for line in alone.lines) and any("SHD20 (" in line for line in alone.lines)
    assert both is not None and both.ids == ("SHD18",) and any(line.startswith("fix") for line in both.lines)
    assert any("0.333333" in line for line in both.lines)


def test_what_is_right_or_rounded_is_not_accused() -> None:
    assert said(_replies(OLMO, answer)) is None

    def rounded(case: Case) -> Mapping[str, np.ndarray]:
        with order(shuffled(3)):
            return components.answer(case)

    assert said(_replies(OLMO, rounded)) is None


def _scaled(case: Case) -> Mapping[str, np.ndarray]:
    return {name: value * 1.7 for name, value in components.answer(case).items()}


def _noisy(case: Case) -> Mapping[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: value + 1e-3 * rng.standard_normal(value.shape) for name, value in components.answer(case).items()}


def _with_defect(id_: str) -> Callable[[Case], Mapping[str, np.ndarray]]:
    def gives(case: Case) -> Mapping[str, np.ndarray]:
        with injected(all_defects()[id_]):
            return components.answer(case)

    return gives


def _with_both(case: Case) -> Mapping[str, np.ndarray]:
    both = {name: altered for id_ in ("SHD1", "SHD18") for name, altered in all_faults()[id_].replaces.items()}
    return answer(case, dataclasses.replace(all_faults()["SHD1"], replaces=both).operations)


OTHERS = {"scaled": _scaled, "noisy": _noisy, "both": _with_both, **{id_: _with_defect(id_) for id_ in ("NRM1", "ATT1", "FFN1", "EMB1")}}


@pytest.mark.parametrize("name", every(4, list(OTHERS)))
def test_what_is_no_fault_of_the_devices_has_no_name(name: str) -> None:
    replies = _replies(("transformer/sharded_llama", "transformer_vjp/sharded_llama"), OTHERS[name])
    found = said(replies)
    if found is not None:
        assert found.ids == () and found.verdict == Verdict.UNEXPLAINED
        assert "--mesh" in found.lines[-1]
        assert "1.7 times" in " ".join([found.text, *found.lines]) or name != "scaled"


def test_what_the_outputs_show_is_said_without_a_name() -> None:
    def shows(case: Case) -> Mapping[str, np.ndarray]:
        found = dict(components.answer(case))
        if case.component == "transformer":
            return {"output": found["output"][[1, 0, 2, 3, 4]]}
        name = "parameters.decoder.layers.0.feed_forward_norm.scale"
        return found | {name: found[name][::-1].copy()}

    found = said(_replies(("transformer/sharded_llama", "transformer_vjp/sharded_llama"), shows))
    assert found is not None and found.ids == ()
    text = " ".join([found.text, *found.lines])
    assert "rows [1, 0, 2, 3, 4]" in text
    assert mentions(text, "1 of 21 … decoder.layers.0.feed_forward_norm.scale (d over data) … decoder.layers.0.feed_forward_norm.scale … 1")


def test_rows_in_another_order_are_seen_beside_padding() -> None:
    case = dataclasses.replace(_cases(MESH)["transformer/sharded_llama"], compared=REAL)
    real_bt = np.arange(6) >= np.array([0, 3, 1, 2, 4])[:, None]
    case = dataclasses.replace(case, inputs={"source": None, "target": 1 + np.arange(30).reshape(5, 6), "target_mask_bt": real_bt})
    raw = components.answer(dataclasses.replace(case, compared=""))["output"]
    found = said([Reply(case, store().expect(case), {"output": raw[[1, 0, 2, 4, 3]]})])
    assert found is not None and any("rows [1, 0, 2, 4, 3]" in line for line in found.lines)


def test_rows_of_the_first_part_alone_may_be_right() -> None:
    def first(case: Case) -> Mapping[str, np.ndarray]:
        output = components.answer(case)["output"].copy()
        output[3:] += 1.0
        return {"output": output}

    found = said(_replies(("transformer/sharded_llama",), first))
    assert found is not None and any("first part" in line for line in found.lines)


@pytest.mark.conformance
@pytest.mark.parametrize(("id_", "fact"), [("SHD24", "update"), ("SHD4", "is wrong")])
def test_steps_of_training_go_wrong_before_or_after_the_first_one(id_: str, fact: str) -> None:
    ids = ("training_steps/sharded_paper_keep",)
    found = said(_replies(ids, lambda case: answer(case, all_faults()[id_].operations), "data=2,model=2"), check=None)
    assert found is not None and fact in found.lines[0] and "gradients" not in found.lines[0]


def test_where_time_is_up_the_facts_remain() -> None:
    def stops() -> None:
        raise TimeIsUp("the limit")

    replies = _replies(OLMO[1:], lambda case: answer(case, all_faults()["SHD18"].operations))
    with pytest.raises(TimeIsUp):
        explanations(replies, stops)
    found = said(replies, check=None)
    assert found is not None and not any("without --mesh" in line for line in found.lines)
    assert found.verdict == Verdict.STOPPED and any("0.5 times" in line for line in found.lines)


@pytest.mark.conformance
def test_float32_is_searched_in_its_own_tolerance() -> None:
    case = _cases(MESH)["transformer_vjp/sharded_olmo2"].at("float32")
    wide = predicted(all_faults()["SHD6"], case)
    given = {name: value.astype(np.float32) for name, value in wide.items()}
    found = said([Reply(case, store().expect(case), given)])
    assert found is not None and found.ids == ("SHD6",)


def test_places_are_paths_kinds_and_parts_of_names() -> None:
    assert at("feed_forward", "decoder.layers.1.feed_forward") and at("query_norm", "decoder.layers.0.self_attention.query_norm.scale")
    assert at("a and query_norm", "layers.0.query_norm.scale") and not at("a and query_norm", "layers.0.query.kernel")
    assert at("decoder.layers.1", "decoder.layers.1.feed_forward") and not at("decoder.layers.1", "decoder.layers.10.feed_forward")
    assert not at("feed_forward", "decoder.layers.0.feed_forward_norm")


def test_a_device_s_piece_of_a_gradient_is_that_of_the_declaration() -> None:
    mesh: Any = Mesh(data=2, model=2)
    assert over_data._piece(("model", None), (5, 3), mesh, 1, 1) == (slice(3, 5), slice(0, 3))
    assert over_data._piece((("model", "data"), None), (8, 3), mesh, 1, 0) == (slice(2, 4), slice(0, 3))


@pytest.mark.parametrize("id_", ["SHD7", "shd20"])
def test_explain_shows_its_page(id_: str) -> None:
    page = CliRunner().invoke(explain, [id_], env={"COLUMNS": "160"}, catch_exceptions=False).output
    fault = all_faults()[id_.upper()]
    for text in (fault.title, fault.what, fault.shows, *fault.variants, *fault.fix.values(), fault.evidence):
        assert mentions(page, text)
    assert fault.title in CliRunner().invoke(explain, [], env={"COLUMNS": "200"}, catch_exceptions=False).output
