"""Cases on a mesh: they have no symmetry, a port file gets the right ones, and the command and reports describe the mesh."""

import contextlib
import dataclasses
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from expectations import store
from fingerprints import FINGERPRINTS
from in_process import InProcess
from invoke import invoke, refused, succeeded
from kinds import conformance
from messages import mentions

from reference_numpy import parameters
from reference_numpy.recipe import Recipe
from reference_numpy.sharding import Mesh, chunks
from reference_numpy.training import Trainer
from rosettaformer.judge import runner, selection
from rosettaformer.judge.case import Case
from rosettaformer.judge.diagnosis import mesh_diagnosis
from rosettaformer.judge.expectation import components
from rosettaformer.judge.expectation.components import DIFFERENTIABLE, OWN, VJP, forward_of, model_of
from rosettaformer.judge.ports import messages, session
from rosettaformer.judge.ports.adapters import whole_model
from rosettaformer.judge.ports.adapters.meshes import answer, by_processes, gathered
from rosettaformer.judge.report import html, junit
from rosettaformer.judge.result import Result
from rosettaformer.judge.status import Status
from rosettaformer.judge.suite.asked import Suite, asked, fitted
from rosettaformer.judge.suite.expression import choose
from rosettaformer.judge.suite.meshes import mesh_cases
from rosettaformer.judge.summary import Summary

PORTS = Path(__file__).parents[1] / "ports"
TWO = Mesh(data=2)
CASES = {case.id: case for case in mesh_cases([TWO])}
LOSS = [CASES[f"training_loss{end}/sharded_llama"] for end in ("", VJP)]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs ports in the test process."""
    monkeypatch.setattr(session, "open_worker", InProcess)
    monkeypatch.setattr(mesh_diagnosis, "Store", store)


def _run(cases: list[Case], port: Path | str = PORTS / "mesh_numpy.py", dtype: str = "float64") -> list[Result]:
    return runner.run(cases, [str(port)], [dtype], store=store())


def test_every_component_with_parameters_is_asked_with_its_gradient_and_so_are_losses_and_steps() -> None:
    config = CASES["transformer/sharded_untied"].config.replace(masked_language_head=False)
    wanted = {name for name in OWN if not forward_of(name) and name in DIFFERENTIABLE and model_of(name) == name}
    with_parameters = set()
    for name in wanted:
        with contextlib.suppress(ValueError):  # without parameters, or of another model
            with_parameters |= {name} if parameters.shapes(config, name) else set()
    asked = {case.component for case in CASES.values()}
    assert with_parameters and {name + end for name in with_parameters for end in ("", VJP)} <= asked
    assert {"training_steps", "training_loss", "classification_loss_vjp", "masked_language_logits_vjp", "classify_vjp"} <= asked
    assert {case.component + VJP for case in CASES.values() if case.component in DIFFERENTIABLE} <= asked


def test_no_case_is_alike_under_a_mesh() -> None:
    for case in CASES.values():
        config, rows = case.config, next((len(value) for value in case.inputs.values() if np.ndim(value) > 1), 5)
        assert all(config.source_vocabulary % parts and config.target_vocabulary % parts for parts in (2, 4, 8)), case.id
        assert case.component == "training_steps" or rows % 2, case.id
        assert config.heads % 8 == 0 and config.feed_forward_width % 8 == 0, case.id
    groups = {case.config.key_value_heads for case in CASES.values()}
    assert min(groups) == 2 and {case.config.query_key_norm for case in CASES.values()} == {"none", "head", "width"}
    models = [case.config for case in CASES.values() if case.component == "training_steps"]
    assert {(config.tie_logits, config.share_embeddings) for config in models} >= {(True, True), (True, False), (False, False)}
    target = LOSS[0].inputs["target"]
    labels = [int((target[rows, 1:] != 0).sum()) for rows in chunks(len(target), 4)]
    assert labels == [5, 4, 2, 0]  # parts of two, two, one and no rows
    assert [int((target[rows, 1:] != 0).sum()) for rows in chunks(len(target), 2)] == [8, 3]


def test_the_plain_suite_knows_nothing_of_meshes() -> None:
    assert not json.loads(FINGERPRINTS.read_text()).keys() & CASES.keys()
    assert len({case.id for case in CASES.values()}) == len(mesh_cases([TWO, Mesh(model=2)])) / 2


def test_every_gradient_and_parameter_can_be_compared_and_a_share_of_it_shows() -> None:
    for case in LOSS:
        for name, one in store().expect(case.at("float64")).items():
            assert not one.incomparable and one.bound < 1e-9 * one.largest, name


@pytest.mark.parametrize("name", ["bert_keep", *map(conformance, ("paper_keep", "microbatches"))])
def test_steps_are_those_of_a_trainer(name: str) -> None:
    case = CASES[f"training_steps/sharded_{name}"]
    found = components.answer(case)
    assert found["losses"].shape == (10,)
    given = parameters.nest(case.inputs)
    trainer = Trainer(case.config, Recipe(**given["recipe"]), case.parameters)
    for step in range(10):
        keep = parameters.nest({site: mask[step] for site, mask in parameters.flatten(given.get("keep", {})).items()})
        source = None if given["source"] is None else given["source"][step]
        assert trainer.train_step(source, given["target"][step], keep) == found["losses"][step]
    after = {key: value for key, value in trainer.state().items() if key.startswith("parameters.")}
    assert after.keys() == found.keys() - {"losses"}
    assert all(np.array_equal(found[key], value) for key, value in after.items())


@pytest.mark.conformance
@pytest.mark.parametrize("name", ["bert_keep", "paper_keep", "microbatches", "gpt2_keep"])
def test_everything_that_steps_are_given_counts(name: str) -> None:
    case = CASES[f"training_steps/sharded_{name}"]
    found = components.answer(case)
    changes = {"recipe.smoothing": 0.0, "recipe.weight_decay": 0.0, "recipe.clip_norm": 1e9}
    changes |= {key: ~value for key, value in case.inputs.items() if key.startswith("keep.")}
    for key, value in changes.items():
        if key in case.inputs and (key != "recipe.clip_norm" or case.inputs[key]):
            other = components.answer(dataclasses.replace(case, inputs=dict(case.inputs) | {key: value}))
            assert any(np.abs(other[each] - found[each]).max() > 1e-6 for each in found), key


@pytest.mark.conformance
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("training_steps")])
def test_ten_steps_are_known_to_ten_digits(name: str) -> None:
    for dtype, digits in (("float64", 10), ("float32", 4)):
        for output, one in store().expect(CASES[name].at(dtype)).items():
            assert one.bound < 10**-digits * one.largest, (output, dtype)


FAULTS = {"": set(), "mean": {*LOSS[0].id.split(), LOSS[1].id}, "twice": {LOSS[1].id}, "lost": {case.id for case in LOSS}}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_port_that_splits_the_batch_conforms_and_its_mistakes_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", fault)
    results = _run(LOSS)
    assert {result.case for result in results if result.status == Status.DIFFERS} == FAULTS[fault]
    assert {result.status for result in results} <= {Status.PASS, Status.DIFFERS}
    assert {(result.mesh, result.place) for result in results} == {("data=2,model=1", "data=2,model=1")}


def test_what_a_port_does_not_answer_on_a_mesh_is_not_covered() -> None:
    case = CASES["embedding/sharded_table"]
    (result,) = _run([case])
    assert (result.status, "batch" in result.message) == (Status.NOT_COVERED, True)
    (result,) = _run([case], PORTS / "numpy_function.py")
    assert result.status == Status.NOT_COVERED and "`on_mesh(case)`" in result.message


def test_on_mesh_is_given_the_case_as_it_is() -> None:
    case, module = CASES["training_steps/sharded_bert_keep"], ModuleType("port")
    module.on_mesh = lambda given: {"same": given is case}  # type: ignore[attr-defined]
    assert answer(module, case) == {"same": True}
    assert {"keep.encoder.embedding_dropout", "recipe.warmup", "source", "target"} <= case.inputs.keys()
    (sent,) = messages.asked(messages.plain([case]))
    assert (sent.mesh, sent.component, sent.inputs["recipe.warmup"]) == (TWO, "training_steps", 40)


def test_losses_of_steps_may_be_numbers_of_any_kind() -> None:
    case, module = CASES["training_steps/sharded_bert_keep"].at("float32"), ModuleType("port")
    module.on_mesh = lambda case: {"losses": [1.5, 2], "parameters.a": np.ones(2)}  # type: ignore[attr-defined]
    found = answer(module, case)
    assert found["losses"].dtype == np.float32 and found["parameters.a"].dtype == np.float64


@pytest.mark.conformance
def test_config_fields_that_a_port_fixes_are_those_of_the_cases() -> None:
    meshes = [TWO, Mesh(model=4)]
    found = fitted(mesh_cases(meshes), {"epsilon": 1e-2, "heads": 6, "key_value_heads": 6})
    assert [case.mesh for case in found] == [case.mesh for case in mesh_cases(meshes)]
    some = [case for case in found if case.id == "transformer/sharded_paper"]
    assert [case.config.epsilon for case in some] == [1e-2, 1e-2] and [case.config.heads for case in some] == [6, 6]
    assert not some[0].excluded and mentions(some[1].excluded, "heads … model=")


def test_tensors_that_are_sharded_are_gathered() -> None:
    whole = SimpleNamespace(numpy=lambda: np.arange(3.0))
    sharded = SimpleNamespace(full_tensor=lambda: whole)
    found = gathered({"output": sharded, "pair": (whole, np.zeros(2)), "number": 1.5})
    assert found["output"].tolist() == found["pair"][0].tolist() == [0, 1, 2] and found["number"] == 1.5


def test_a_port_with_torch_or_that_says_so_has_a_process_for_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("port")
    for name in ("torch", "jax", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert not by_processes(module)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert by_processes(module)
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    assert not by_processes(module)
    module.processes = True
    assert by_processes(module)


def test_too_few_devices_of_a_kind_are_said() -> None:
    devices = {"on_mesh": True, "devices": ["cpu", "cuda: one"]}
    about = {"config": {}, "components": (), "modes": ["eager"], "dtypes": ["float32"]} | devices
    case = dataclasses.replace(CASES["embedding/sharded_table"], mesh=Mesh(data=2, model=2))
    found = asked(Suite([case]), about, case.mesh)
    assert found.question(case, "float32").status is None
    question = found.question(case, "float32", "cuda")
    assert question.status == Status.SKIPPED and mentions(question.reason, "data=2,model=2 … 4 cuda … 1")
    assert found.question(dataclasses.replace(case, mesh=Mesh()), "float32", "cuda").status is None


@pytest.mark.parametrize(("words", "said"), [
    (["--mesh", "data=2,model=3"], "data=2,model=3 … embedding/sharded_table"),
    (["--mesh", "two"], "data=N,model=N"),
    (["--mesh", "data=100"], "at most 64 devices; got 100"),
    (["--mesh", "data=2", "--checkpoint", "x"], "--checkpoint"),
    (["--mesh", "data=2", "--command", "x"], "--command"),
])  # fmt: skip
def test_a_mesh_that_cannot_be_is_one_error(words: list[str], said: str) -> None:
    message = refused("check", PORTS / "mesh_numpy.py", *words)
    assert mentions(message, said) and message.count("got h") <= 1


def test_reports_name_the_mesh(tmp_path: Path) -> None:
    words = ["--mesh", "data=2", "--mesh", "data=2,model=2", "-k", "training_loss/sharded_llama", "--dtype", "float32"]
    found = succeeded("check", PORTS / "mesh_numpy.py", *words, "--json", tmp_path / "x.json", "--junit", tmp_path / "x.xml")
    assert re.search(r"data=2,model=1 +.*data=2,model=2", found.out)
    rows = json.loads((tmp_path / "x.json").read_text())["results"]
    assert [(row["mesh"], row["status"]) for row in rows] == [("data=2,model=1", "pass"), ("data=2,model=2", "not covered")]
    assert 'name="sharded_llama[float32-eager-data=2,model=1]"' in (tmp_path / "x.xml").read_text()


def test_a_failure_is_reported_with_its_mesh_and_without_one_nothing_changes() -> None:
    plain = Result("a/b", "a", "mine", "float32", "cpu", "eager", Status.PASS, ratio=1.0, excess=0.1)
    sharded = dataclasses.replace(plain, mesh="data=2,model=2")
    cuda = dataclasses.replace(sharded, device="cuda")
    assert [one.place for one in (plain, sharded, cuda)] == ["cpu", "data=2,model=2", "cuda data=2,model=2"]
    summary = Summary([plain, sharded, cuda])
    assert summary.columns == [("mine", "eager", "cpu"), ("mine", "eager", "data=2,model=2"), ("mine", "eager", "cuda data=2,model=2")]
    assert "[float32-eager-cuda data=2,model=2]" in junit.render(summary)
    page = html.render(summary)
    assert page.count("data=2,model=2") > 2 and "device=data%3D2%2Cmodel%3D2" in page
    assert {row["device"] for row in html.context(summary)["data"]["results"]} == {"cpu", "data=2,model=2", "cuda data=2,model=2"}


def test_the_cases_of_meshes_are_listed_and_chosen() -> None:
    lines = succeeded("list", "cases", "--mesh", "data=2", "--mesh", "model=2", "-k", "training_steps and olmo2").out.splitlines()
    assert [line.split()[0] for line in lines] == ["training_steps/sharded_olmo2"] * 2
    assert ["data=2,model=1" in line for line in lines] == [True, False]
    assert invoke("list", "ports", "--mesh", "data=2").code == 2
    both = mesh_cases([TWO, Mesh(model=2)])
    assert len(choose(both, "table and not vjp and not position and not segment and float32")) == 2


def test_diagnose_says_which_fault_of_the_devices_gives_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "twice")
    monkeypatch.setattr(selection, "mesh_cases", lambda meshes: [*LOSS, CASES["embedding/sharded_table"]])
    found = invoke("diagnose", PORTS / "mesh_numpy.py", "--mesh", "data=2")
    text = " ".join(found.out.split())
    assert found.code == 1 and mentions(text, "training_loss_vjp … data=2,model=1")
    assert "SHD19" in text and "2 times" in text
    monkeypatch.setenv("FAULT", "")
    assert succeeded("diagnose", PORTS / "mesh_numpy.py", "--mesh", "data=2").out.startswith("nothing to explain")


def test_load_is_given_the_mesh_and_loads_once_for_each() -> None:
    module, loaded = ModuleType("whole"), []

    def load(folder: str, mesh: Mesh) -> Any:
        loaded.append((folder, mesh))
        return lambda token_bt: np.zeros((*token_bt.shape, 37))

    module.load = load  # type: ignore[attr-defined]
    adapter = whole_model.Adapter(module)
    case = dataclasses.replace(CASES["transformer/sharded_llama"], folder="where")
    for mesh in (TWO, TWO, Mesh(model=2)):
        assert adapter.run(dataclasses.replace(case, mesh=mesh)).shape == (5, 6, 37)
    assert adapter.takes_mesh and loaded == [("where/float64", TWO), ("where/float64", Mesh(model=2))]


@pytest.mark.conformance
def test_a_port_of_a_whole_model_is_given_the_mesh() -> None:
    words = ["--like", "qwen3", "--mesh", "data=2", "--dtype", "float64", "-k", "short or training or batch"]
    found = succeeded("check", PORTS / "mesh_whole.py", *words)
    assert re.search(r"training +f64 .* pass", found.out) and re.search(r"transformer_vjp +f64 .* pass", found.out)
    found = invoke("check", PORTS / "whole_numpy.py", *words)
    assert found.code == 1 and "load(folder, mesh)" in found.out
    assert "heads" in refused("check", PORTS / "mesh_whole.py", "--like", "qwen3", "--mesh", "model=4")
