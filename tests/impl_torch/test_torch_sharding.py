"""A mesh of processes gives the reference's numbers: losses, every gradient, and every parameter after ten steps.

Checks are in `on_processes`; every run starts the processes of one mesh.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from on_processes import CHECKS

from impl_torch.training import Trainer
from reference_numpy import TransformerConfig, preset
from reference_numpy.parameters import initialise
from reference_numpy.recipe import PAPER
from reference_numpy.sharding import Mesh

pytestmark = pytest.mark.product

CONFIG = preset("tiny", source_vocabulary=23, target_vocabulary=23, encoder_layers=1, decoder_layers=1, dropout_rate=0.2)
HERE = Path(__file__).parent
ALL = tuple(name for name in CHECKS if not name.startswith("suite/"))
FIRST = ("recompute", "components", "traffic")
ALONG_ONE = ("data=2", "data=4", "model=2", "model=4")
MESHES = (*ALONG_ONE, "data=1", "data=4,replicate", "data=2,model=2", "data=2,model=2,replicate")
ON_GPUS = (*ALONG_ONE, "data=2,replicate", "data=2,model=2")


def in_groups(meshes: Mapping[str, Sequence[str]]) -> list[Any]:
    """Returns meshes with their checks; a mesh stays in one worker, which starts its processes once."""
    return [
        pytest.param(mesh, check, marks=pytest.mark.xdist_group(f"torch on {mesh}"), id=f"{mesh}-{check}")
        for mesh, checks in meshes.items()
        for check in checks
    ]


@functools.cache
def wrong(mesh: str, checks: tuple[str, ...], device: str = "cpu") -> dict[str, str]:
    """Returns the error of each check on this mesh; the checks share one start of its processes."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    line = [sys.executable, str(HERE / "on_processes.py"), mesh, device, *checks]
    ended = subprocess.run(line, capture_output=True, text=True, env=environment, cwd=HERE.parents[1], timeout=900)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize(("mesh", "check"), in_groups({"data=2,model=2": FIRST}))
@pytest.mark.conformance
def test_four_processes_of_two_axes(mesh: str, check: str) -> None:
    assert not wrong(mesh, FIRST)[check]


@pytest.mark.conformance
@pytest.mark.parametrize(("mesh", "check"), in_groups(dict.fromkeys(MESHES, ALL)))
def test_every_check_on_every_mesh(mesh: str, check: str) -> None:
    assert not wrong(mesh, ALL)[check]


@pytest.mark.conformance
@pytest.mark.parametrize("mesh", ["data=2,model=2", "model=4", "data=4"])
@pytest.mark.parametrize("part", range(12))
def test_every_case_of_the_suite(mesh: str, part: int) -> None:
    assert not wrong(mesh, (f"suite/{part}",))[f"suite/{part}"]


@pytest.mark.gpu
@pytest.mark.parametrize(("mesh", "check"), in_groups({"data=1": ALL}))
def test_a_mesh_of_one_gpu(mesh: str, check: str) -> None:
    """The process group is nccl's, parameters are created on the device, and its kernels accept FSDP2's parameters."""
    assert not wrong(mesh, ALL, "cuda")[check]


@pytest.mark.multigpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
@pytest.mark.parametrize(("mesh", "check"), in_groups(dict.fromkeys(ON_GPUS, ALL)))
def test_several_gpus(mesh: str, check: str) -> None:
    """Runs nccl collectives between devices."""
    if (found := torch.cuda.device_count()) < (needed := Mesh.parse(mesh).devices):
        pytest.skip(f"the mesh {mesh} needs {needed} CUDA devices; there are {found}")
    assert not wrong(mesh, ALL, "cuda")[check]


def begin(config: TransformerConfig = CONFIG, **setting: Any) -> Trainer:
    return Trainer(config, PAPER, initialise(config, 0), compiled=False, **setting)


def test_a_mesh_without_its_processes_and_one_that_does_not_divide_are_one_error_each() -> None:
    with pytest.raises(ValueError, match=r"data=2,model=2 needs 4.*1$"):
        begin(mesh=Mesh(data=2, model=2))
    with pytest.raises(ValueError, match=r"heads.*mesh's"):
        begin(CONFIG.replace(heads=3, key_value_heads=3), mesh=Mesh(model=2))


def test_activations_that_are_computed_again_change_no_bit_and_are_not_kept() -> None:
    source, target = np.random.default_rng(0).integers(1, 23, (2, 3, 6))
    runs: list[Any] = []
    for recompute in (False, True):
        run, kept = begin(recompute=recompute), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, kept=kept: kept.append(x.nbytes) or x, lambda x: x):
            loss = float(run.train_step(source, target))
        runs.append((loss, run.state(), sum(kept)))
    assert runs[0][0] == runs[1][0]
    assert all(np.array_equal(array, runs[1][1][name]) for name, array in runs[0][1].items())
    assert runs[1][2] < runs[0][2] / 3
