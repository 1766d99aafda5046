"""Outputs of decoders on a mesh, from their own processes: `python tests/support/mesh_answers.py`, jobs of JSON in, outputs out.

PyTorch has one process per device, all forks of one; JAX has as many CPU devices in one process.
"""

import json
import math
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

# folder, mesh ("" for none), prompts, settings, dtype
Job = dict[str, Any]


def answers(backend: str, devices: int, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Returns the result of `found_by` for each job on a mesh of `devices` devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, __file__, backend, str(devices)]
    ended = subprocess.run(line, input=json.dumps(jobs), capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found


def found_by(backend: str, job: Job) -> dict[str, Any]:
    """Returns the generated tokens, the logits after them and after one more token, and the cache's rows and numbers per row on
    one device.
    """
    from reference_numpy.sharding import Mesh
    from rosettaformer.files.checkpoints import view
    from rosettaformer.use.inference.generation import Answer, generate
    from rosettaformer.use.inference.models import open_model
    from rosettaformer.use.inference.options import GenerationOptions

    mesh = Mesh.parse(job["mesh"]) if job["mesh"] else None
    model, prompts = open_model(view(Path(job["folder"])), backend, job["dtype"], mesh=mesh), job["prompts"]
    said = {}
    for name, settings in job["settings"].items():
        options = GenerationOptions(**{field: tuple(value) if isinstance(value, list) else value for field, value in settings.items()})
        events = [event for event in generate(model, prompts, options) if isinstance(event, Answer)]
        said[name] = sorted([event.prompt, event.answer, list(event.tokens), event.score] for event in events)
    width = max(map(len, prompts))
    token_bt = np.array([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask_bt = np.arange(width) >= width - np.array([[len(prompt)] for prompt in prompts])
    logits_bv, cache = model.read(token_bt, mask_bt, model.start(len(prompts), width + 1))
    layers = cache["layers"] if isinstance(cache, dict) else cache.layers
    shapes = [_shape(kept) for layer in layers for kept in layer["self_attention"]]
    more_bv, _ = model.read(token_bt[:, :1] + 1, mask_bt[:, -1:], model.reorder(cache, np.arange(len(prompts))[::-1]))
    found = {"answers": said, "logits": [logits_bv.tolist(), more_bv.tolist()], "speaks": model.speaks}
    held = sum(math.prod(shape[1:]) for shape in shapes)
    return found | {"rows": shapes[0][0], "held": held, "groups": model.config.key_value_heads}


def _shape(kept: Any) -> tuple[int, ...]:
    """Returns the shape of the part of an array on one device."""
    return tuple(kept.addressable_shards[0].data.shape if hasattr(kept, "addressable_shards") else kept.shape)


def _torch(devices: int, jobs: list[Job]) -> list[dict[str, Any]]:
    """Forks the other processes, which compute the same; their errors are printed and end them."""
    import torch

    import rosettaformer.use.inference.torch_mesh  # noqa: F401

    torch.set_num_threads(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(devices)}
    os.environ.update(meeting | {"RANK": "0"})
    others = []
    for rank in range(1, devices):
        if not (child := os.fork()):
            os.environ["RANK"] = str(rank)
            _end(jobs)
        others.append(child)
    found = [found_by("torch", job) for job in jobs]
    assert [os.waitpid(child, 0)[1] for child in others] == [0] * len(others)
    return found


def _end(jobs: list[Job]) -> None:
    code = 1
    try:
        silent = [not found_by("torch", job)["speaks"] for job in jobs]
        code = 0 if all(silent) else 3
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _main() -> None:
    backend, devices, jobs = sys.argv[1], int(sys.argv[2]), json.load(sys.stdin)
    found = _torch(devices, jobs) if backend == "torch" else [found_by(backend, job) for job in jobs]
    json.dump(found, sys.stdout)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _main()
