"""Determines the devices and processes of a run, and configures frameworks before they start."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from reference_numpy.sharding import Mesh

XLA_DEVICES = "--xla_force_host_platform_device_count"
MOST = 256  # devices of a mesh on one machine


@dataclass(frozen=True)
class Place:
    """The place of this process in a run. rank: its number of `size`. device: for the Trainer."""

    device: str
    rank: int = 0
    size: int = 1


def started() -> tuple[int, int]:
    """Returns the number of processes, and this one's on its machine, from the environment."""
    if "RANK" in os.environ:
        return _number("WORLD_SIZE", 1), _number("LOCAL_RANK", 0)
    if "TF_CONFIG" in os.environ:
        return _of_tf("cpu").size, 0
    return _number("JAX_NUM_PROCESSES", 1), 0


def to_start(backend: str, mesh: Mesh) -> int:
    """Returns how many processes to start; 0 if this process already is the run, or part of it.

    Raises ValueError if a machine cannot have that many devices.
    """
    if mesh.devices > MOST and not {"RANK", "JAX_NUM_PROCESSES", "TF_CONFIG"} & {*os.environ}:
        raise ValueError(f"a mesh on one machine must have at most {MOST} devices; got {mesh}")
    if backend != "torch" or mesh.devices == 1 or "RANK" in os.environ:
        return 0
    return mesh.devices


def place(backend: str, device: str, mesh: Mesh | None) -> Place:
    """Returns the place of this process, and sets the environment variables of the backend.

    Raises ValueError if the processes do not match the mesh.
    """
    if backend == "torch" and "RANK" in os.environ:
        return _of_torchrun(device, mesh)
    if "TORCHELASTIC_RUN_ID" in os.environ and started()[0] > 1:
        raise ValueError(f"torchrun starts processes for torch; the backend {backend} needs one per machine. Start it without torchrun")
    if backend == "jax" and mesh:
        return _of_jax(device, mesh)
    if backend == "tf" and mesh and "TF_CONFIG" in os.environ:
        return _of_tf(device)
    return Place(device)


@contextlib.contextmanager
def left_well() -> Iterator[None]:
    """Leaves the PyTorch process group that the block has joined, if the block succeeds."""
    joined = _joined()
    yield
    if not joined and (group := _joined()):
        group.destroy_process_group()


def _joined() -> Any:
    """Returns torch.distributed if this process is in a group, otherwise None."""
    module = sys.modules.get("torch.distributed")
    return module if module and module.is_available() and module.is_initialized() else None


def _of_torchrun(device: str, mesh: Mesh | None) -> Place:
    rank, (size, local) = _number("RANK", 0), started()
    if size != (mesh.devices if mesh else 1):
        wanted = f"the mesh {mesh} needs {mesh.devices} processes" if mesh else "a run without --mesh is one process"
        raise ValueError(f"{wanted}; torchrun has started {size}")
    return Place(f"cuda:{local}" if device == "cuda" else device, rank, size)


def _of_jax(device: str, mesh: Mesh) -> Place:
    """Gives JAX a CPU device per device of the mesh, and joins JAX_NUM_PROCESSES processes."""
    size, rank = _number("JAX_NUM_PROCESSES", 1), _number("JAX_PROCESS_ID", 0)
    flags = os.environ.get("XLA_FLAGS", "")
    if device == "cpu" and mesh.devices > 1 and XLA_DEVICES not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {XLA_DEVICES}={mesh.devices // size}".strip()
    if size > 1:
        import jax

        if not jax.distributed.is_initialized():
            jax.distributed.initialize(num_processes=size, process_id=rank)  # reads JAX_COORDINATOR_ADDRESS
    return Place(device, rank, size)


def _of_tf(device: str) -> Place:
    try:
        said = json.loads(os.environ["TF_CONFIG"])
        tasks = [(job, index) for job in ("chief", "worker") for index in range(len(said["cluster"].get(job, ())))]
        return Place(device, tasks.index((said["task"]["type"], int(said["task"]["index"]))), len(tasks))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the environment variable TF_CONFIG must describe a cluster and this process's task; {error!r:.100}") from None


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise ValueError(f"the environment variable {name} must be a number; got {text!r:.50}")
    return int(text)
