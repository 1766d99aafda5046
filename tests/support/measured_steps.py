"""Measures what a Trainer's training step sends and stores: torch's trace of processes, or XLA's compiled program for the devices of one.

`python tests/support/measured_steps.py FILE` is such a process: steps as JSON in the file, measurements as JSON on output.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reference_numpy import TransformerConfig, parameters
from reference_numpy.recipe import Recipe
from reference_numpy.sharding import Mesh
from rosettaformer.use.scaling.step import Step

FIELDS = ("rows", "source", "target", "dtype", "recompute", "backend")
SECONDS = 3600  # limit for all steps of a call on a busy machine


class Measured(NamedTuple):
    """sent: kind and payload of each collective of the first device. held: its bytes of parameters and moments."""

    sent: list[tuple[str, int]]
    held: dict[str, int]


def encoded(step: Step) -> dict[str, Any]:
    """Encodes a step as JSON."""
    own = {"config": step.config.to_dict(), "mesh": str(step.mesh), "recipe": step.recipe.to_dict()}
    return own | {name: getattr(step, name) for name in FIELDS}


def decoded(given: Mapping[str, Any]) -> Step:
    """Decodes a step from JSON."""
    own = {"config": TransformerConfig(**given["config"]), "mesh": Mesh.parse(given["mesh"]), "recipe": Recipe(**given["recipe"])}
    return Step(**own, **{name: given[name] for name in FIELDS})


def measure(steps: Sequence[Step]) -> list[Measured]:
    """Runs the steps in processes that together have all devices; all steps have the same backend and number of devices.

    Raises RuntimeError with the output of the processes if one fails.
    """
    ((backend, devices),) = {(step.backend, step.mesh.devices) for step in steps}
    with tempfile.TemporaryDirectory() as folder:
        file, errors = Path(folder) / "steps.json", Path(folder) / "errors"
        file.write_text(json.dumps([*map(encoded, steps)]), encoding="utf-8")
        with errors.open("w") as written:
            line, out = [sys.executable, __file__, str(file)], (subprocess.PIPE, subprocess.DEVNULL)
            processes = [subprocess.Popen(line, env=environment, stdout=out[rank > 0], stderr=written, text=True)
                         for rank, environment in enumerate(_environments(backend, devices))]  # fmt: skip
            try:
                printed, *_ = [process.communicate(timeout=SECONDS)[0] for process in processes]
            finally:
                for process in processes:
                    process.kill()
        if any(process.returncode for process in processes):
            raise RuntimeError(errors.read_text()[-5000:])
    return [Measured([(kind, size) for kind, size in each["sent"]], each["held"]) for each in json.loads(printed.splitlines()[-1])]


def kept(step: Step) -> int:
    """Returns the bytes that eager torch on one device saves for backward, except parameters and tensors as wide as the vocabulary."""
    import torch

    from impl_torch.transformer import Transformer

    model, found = Transformer(step.config), dict[int, Any]()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.shape[-1:] != (step.config.target_vocabulary,):
            found[storage.data_ptr()] = storage  # kept alive, so that its address is not reused
        return tensor

    source = torch.ones(step.rows, step.source, dtype=torch.long) if step.config.encoder_layers else None
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.training_loss(source, torch.ones(step.rows, step.target + 1, dtype=torch.long), step.recipe.smoothing)
    return sum(storage.nbytes() for storage in found.values())


def _environments(backend: str, devices: int) -> Iterator[dict[str, str]]:
    """Yields the environment of each process."""
    own = os.environ | {"OMP_NUM_THREADS": "1"}
    if backend == "jax":
        yield own | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(devices)}
    for rank in range(devices):
        yield own | where | {"RANK": str(rank), "LOCAL_RANK": str(rank)}


def _measured(step: Step) -> dict[str, Any]:
    rng, config = np.random.default_rng(0), step.config
    source = rng.integers(1, config.source_vocabulary, (step.rows, step.source)) if config.encoder_layers else None
    target = rng.integers(1, config.target_vocabulary, (step.rows, step.target + 1))
    if config.classes:
        target = rng.integers(0, config.classes, step.rows)
    start = parameters.initialise(config, 0, np.dtype(step.dtype))
    sent, held = (_by_torch if step.backend == "torch" else _by_jax)(step, start, source, target)
    return {"sent": [(kind.replace("_", "-"), size) for kind, size in sent], "held": held}


def _by_torch(step: Step, start: Any, source: Any, target: Any) -> tuple[list[tuple[str, int]], dict[str, int]]:
    from impl_torch.programs import parts
    from impl_torch.training import Trainer

    trainer: Any = Trainer(step.config, step.recipe, start, mesh=step.mesh, recompute=step.recompute)
    trainer.train_step(source, target)  # the first step creates process groups
    sent = parts.traffic(lambda: trainer.train_step(source, target))
    sizes = {part: sum(tensor.nbytes for tensor in tensors.values()) for part, tensors in trainer._trees.items()}
    return sent, {"parameters": sizes["parameters"], "moments": sizes["first_moment"] + sizes["second_moment"]}


def _by_jax(step: Step, start: Any, source: Any, target: Any) -> tuple[list[tuple[str, int]], dict[str, int]]:
    import jax

    from impl_jax.programs.traffic import traffic
    from impl_jax.training import Trainer, moments

    trainer: Any = Trainer(step.config, step.recipe, start, mesh=step.mesh, recompute=step.recompute)
    of = {"parameters": trainer._parameters, "moments": moments(trainer._moments)}
    held = {what: sum(array.addressable_shards[0].data.nbytes for array in jax.tree.leaves(tree)) for what, tree in of.items()}
    return traffic(trainer.program(source, target)), held


if __name__ == "__main__":
    print(json.dumps([_measured(decoded(each)) for each in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))]))
