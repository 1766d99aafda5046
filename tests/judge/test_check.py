"""A check compares every case that it should, and computes each expectation and each program once."""

import contextlib
import copy
import dataclasses
import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from expectations import suite
from invoke import invoke
from kinds import conformance
from messages import mentions

from rosettaformer.judge import runner
from rosettaformer.judge.case import DTYPES
from rosettaformer.judge.expectation.components import is_layout
from rosettaformer.judge.expectation.expectation_store import Store, digest
from rosettaformer.judge.ports import process, session
from rosettaformer.judge.suite import all_cases, of_components

pytestmark = pytest.mark.product

CORE = [case for case in suite() if case.core and not is_layout(case.component)]
NUMPY = "from reference_numpy import softmax as s\n\ndef softmax(case):\n    return s.softmax(**case.inputs)\n"
COMPILING = """
import os, jax, numpy as np
hits = []
jax.monitoring.register_event_listener(lambda name, **about: hits.append(name))

def softmax(case):
    jax.jit(lambda x: x * 2)(np.ones(3, np.float32))
    return {"hits": np.array(sum(name.endswith("/cache_hits") for name in hits)),
            "folder": np.frombuffer(os.environ["JAX_COMPILATION_CACHE_DIR"].encode(), np.uint8)}
"""


@pytest.fixture
def port(tmp_path: Path) -> str:
    path = tmp_path / "numpy_softmax.py"
    path.write_text(NUMPY)
    return str(path)


@pytest.mark.conformance
def test_our_ports_are_compared_on_every_core_case() -> None:
    pytest.importorskip("torch")
    result = invoke("check", "torch", "--json", "-")
    wanted = [(case.id, dtype) for case in CORE for dtype in DTYPES if dtype in case.dtypes]
    assert [(row["case"], row["dtype"]) for row in json.loads(result.out)["results"]] == wanted
    assert {row["status"] for row in json.loads(result.out)["results"]} == {"pass"}
    assert mentions(result.err, f"torch … {len(wanted)}")
    assert "--quick: " not in result.err


def test_quick_chooses_among_the_cases_of_any_port(port: str) -> None:
    result = invoke("check", port, "--quick", "--component", "softmax", "--json", "-")
    wanted = [(case.id, "float32") for case in CORE if case.component == "softmax"]
    assert [(row["case"], row["dtype"]) for row in json.loads(result.out)["results"]] == wanted
    assert "--quick: " in result.err


@pytest.mark.parametrize(("options", "modes"), [((), ("eager", "compiled")), conformance((("--mode", "eager"), ("eager",)))])
def test_full_runs_every_mode_or_those_that_are_named(tmp_path: Path, options: tuple[str, ...], modes: tuple[str, ...]) -> None:
    (tmp_path / "two_modes.py").write_text(f"{NUMPY}\nmodes = ('eager', 'compiled')\n")
    result = invoke("check", tmp_path / "two_modes.py", "--full", "--component", "softmax", "--dtype", "float64", *options, "--json", "-")
    cases = [case.id for case in of_components(all_cases(grad=True), ["softmax"], True)]
    assert Counter((row["case"], row["mode"]) for row in json.loads(result.out)["results"]) == Counter(itertools.product(cases, modes))
    assert mentions(result.err, f"two_modes.py … {len(cases) * len(modes)}")


def test_an_expectation_is_computed_once_for_all_that_it_depends_on(port: str) -> None:
    store, cases = Store(), of_components(all_cases(), ["softmax"])
    runs = [runner.run(those, [port, port], ["float64", "float32"], store=store) for those in (cases, copy.deepcopy(cases))]
    assert [len(results) for results in runs] == [4 * len(cases)] * 2
    assert {result.status for results in runs for result in results} == {"pass"}
    assert store.computed == 2 * len(cases)
    case = next(case for case in CORE if case.id == "encoder_layer/post")
    name, array = next(iter(case.inputs.items()))
    other = {
        "config": dataclasses.replace(case.config, epsilon=0.5),
        "inputs": dict(case.inputs) | {name: array + 1e-12},
        "parameters": {key: value + 1e-12 for key, value in case.parameters.items()},
        "device": "cuda-tf32",
        "component": "encoder",
    }
    changed = [dataclasses.replace(case, **{field: value}) for field, value in other.items()] + [case.at("float32")]
    assert len({digest(one) for one in (case, *changed)}) == 1 + len(changed)
    assert digest(dataclasses.replace(case, name="other", catches=(), inputs=dict(reversed(case.inputs.items())))) == digest(case)


def test_kept_expectations_are_read_again_unless_their_file_is_damaged(tmp_path: Path) -> None:
    by_component = {case.component: case for case in all_cases(grad=True) if case.core and "bfloat16" in case.dtypes}
    cases = [by_component[name].at("bfloat16") for name in ("softmax", "causal_mask", "encoder_layer_vjp")]
    first, second = Store(tmp_path / "kept"), Store(tmp_path / "kept")
    for case in cases:
        for name, one in first.expect(case).items():
            other = second.expect(case)[name]
            np.testing.assert_array_equal(one.reference, other.reference, strict=True)
            assert dataclasses.replace(one, reference=other.reference) == other
    assert (first.computed, second.computed) == (len(cases), 0)
    path = tmp_path / "kept" / f"{digest(cases[0])}.npz"
    path.write_bytes(path.read_bytes()[:-20])
    (third := Store(tmp_path / "kept")).expect(cases[0])
    assert third.computed == 1


@pytest.mark.parametrize("own", [False, True], ids=["a new folder", "the user's own"])
def test_equal_programs_compile_once_in_a_new_folder_or_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    pytest.importorskip("jax")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    if own:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "own"))
        monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    (tmp_path / "compiling.py").write_text(COMPILING)
    case = next(case for case in CORE if case.component == "softmax")
    with contextlib.closing(session.open_worker(str(tmp_path / "compiling.py"), 1)) as worker:
        answers = [worker.ask(case, 60)[1] for _ in range(3)]
        folder = Path(bytes(answers[0]["folder"]).decode())
        assert [int(answer["hits"]) for answer in answers] == [0, 1, 2]
        assert folder.is_dir()
        assert (folder == tmp_path / "own") == own
    assert folder.exists() == own


@pytest.mark.conformance
def test_an_xla_that_does_not_know_the_quick_flags_compiles_as_always(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.setattr(process, "QUICK_XLA", "--xla_no_such_flag=true")
    with contextlib.closing(session.open_worker("jax", 1, quick_compile=True)) as worker:
        assert worker.greeting[0] == "ready"


@pytest.mark.parametrize(("given", "why"), [
    (("--command", "./no_such_program"), "./no_such_program does not exist"), (("./none.py",), "load(folder)"),
])  # fmt: skip
def test_why_a_port_does_not_start_is_said_once(given: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "none.py").write_text("def build(folder): ...")
    monkeypatch.chdir(tmp_path)
    found = invoke("check", *given, "--component", "softmax")
    assert found.code == 2 and (found.out + found.err).count(why) == 1 and "did not start" in found.out
