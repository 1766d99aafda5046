"""Sharded ports as users write them: the correct ones conform on every mesh, and their planted bugs are caught and named."""

import dataclasses
from pathlib import Path

import pytest
from sharded_ports import PORTS, cases_of, judged, planted, replies

from rosettaformer.judge.catalogue.sharded import all_faults
from rosettaformer.judge.diagnosis.sharding import said

MESHES = {
    "jax_decoder.py": ("data=2,model=4", "data=3", "model=2", "data=4,model=2"),
    "torch_decoder.py": ("data=2,model=2", "data=3", "model=4", "data=2,replicate"),
    "jax_steps.py": ("data=2",),
}


@pytest.mark.conformance
@pytest.mark.parametrize(("port", "mesh"), [(port, mesh) for port in MESHES for mesh in MESHES[port]])
def test_a_right_port_is_not_accused(port: str, mesh: str, tmp_path: Path) -> None:
    found = replies(PORTS / port, cases_of(port, tmp_path, mesh))
    assert said(found) is None
    assert all(reply.outputs for reply in found)


@pytest.mark.conformance
def test_a_right_port_whose_tables_are_whole_is_not_accused(tmp_path: Path) -> None:
    one = planted()["whole_tables"]
    found, what = judged(dataclasses.replace(one, edits=one.edits[1:]), tmp_path)  # without the bug
    assert what is None and all(reply.outputs for reply in found)


@pytest.mark.conformance
@pytest.mark.parametrize("name", planted())
def test_a_mistake_is_caught_and_named(name: str, tmp_path: Path) -> None:
    found, what = judged(planted()[name], tmp_path)
    assert any(reply.wrong for reply in found) and what is not None
    assert what.ids == ((planted()[name].name,) if planted()[name].name else ())


def test_every_mistake_can_be_planted() -> None:
    for name, one in planted().items():
        assert one.text() != (PORTS / one.port).read_text(encoding="utf-8"), name
        assert not one.name or one.name in all_faults()
    assert len(planted()) >= 12
