"""The sharded ports of tests/ports/sharded, correct or with one planted bug, their outputs on a mesh, and the verdicts on them."""

import contextlib
import dataclasses
import functools
import os
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from expectations import store

from reference_numpy.sharding import Mesh
from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge.case import Case
from rosettaformer.judge.diagnosis.sharding import Reply, Said, said
from rosettaformer.judge.ports.process import QUICK_XLA
from rosettaformer.judge.ports.session import open_worker
from rosettaformer.judge.status import Kind
from rosettaformer.judge.suite.like import like_cases
from rosettaformer.judge.suite.meshes import mesh_cases

PORTS = Path(__file__).resolve().parent.parent / "ports" / "sharded"
LIMIT = 100.0  # seconds per output on a busy machine
ASKED = ("transformer/left_padding", "transformer_vjp/short", "transformer_vjp/left_padding", "training/batch", "training/right_padding")
STEPS = "training_steps/sharded_recompute"  # the case of GPT-2 with keep masks
DONE, LONGEST = 4, 0.5  # number of steps run, and the norm to which gradients are clipped
# sizes that no mesh divides evenly: neither vocabulary nor rows divide, and there are fewer than 4 key heads
COMMON = {"attention_bias": True, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 41}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch_decoder.py": ("qwen3", COMMON | {"tie_word_embeddings": True, "hidden_size": 20, "head_dim": 6, "intermediate_size": 28}),
    "jax_decoder.py": ("olmo2", COMMON | {"hidden_size": 48, "intermediate_size": 28}),
}


@dataclass(frozen=True)
class Planted:
    """A bug planted in a port: the edits that make it, the mesh that shows it, and its id in the catalogue."""

    port: str
    what: str
    mesh: str
    name: str
    edits: Sequence[Sequence[str]]

    def text(self) -> str:
        """Returns the port with the bug. Raises ValueError unless the correct lines occur once."""
        text = (PORTS / self.port).read_text(encoding="utf-8")
        for right, wrong in self.edits:
            if text.count(right) != 1:
                raise ValueError(f"{self.port} must hold these lines once; it holds them {text.count(right)} times:\n{right}")
            text = text.replace(right, wrong)
        return text


@functools.cache
def planted() -> dict[str, Planted]:
    """The planted bugs by name."""
    tables = tomllib.loads((PORTS / "faults.toml").read_text(encoding="utf-8"))
    rows = ((name, port, *row) for port, table in tables.items() for name, row in table.items())
    return {name: Planted(port, what, mesh, fault, edits) for name, port, mesh, fault, what, *edits in rows}


def cases_of(port: str, root: Path, mesh: str, dtype: str = "float64") -> list[Case]:
    """Returns the cases of the port's model on a mesh that have few tokens, or its training steps. The model is made in `root`."""
    if port not in MODELS:
        return [_clipped(case).at(dtype) for case in mesh_cases([Mesh.parse(mesh)]) if case.id == STEPS]
    family, settings = MODELS[port]
    if not (root / port / dtype).exists():
        (root / port).mkdir(exist_ok=True)
        new.write(family, root / port / dtype, dtype=dtype, settings=settings)
    found = like_cases(root / port, [Mesh.parse(mesh)])
    return [case.at(dtype) for case in found if case.id in ASKED]


def _clipped(case: Case) -> Case:
    """Returns the first steps of a case, with clipped gradients."""
    given = {name: value[:DONE] if isinstance(value, np.ndarray) else value for name, value in case.inputs.items()}
    return dataclasses.replace(case, inputs={**given, "recipe.clip_norm": LONGEST})


def replies(file: Path, cases: Sequence[Case]) -> list[Reply]:
    """Returns the outputs of a port file. Raises RuntimeError if there is none."""
    os.environ.setdefault("XLA_FLAGS", QUICK_XLA)
    with contextlib.closing(open_worker(str(file), 1, LIMIT, mesh=cases[0].mesh)) as worker:
        if worker.greeting[0] != Kind.READY:
            raise RuntimeError(f"the port did not start: {worker.greeting}")
        return list(_replies(worker, cases))


def _replies(worker: Any, cases: Sequence[Case]) -> Iterator[Reply]:
    for case, (kind, answer) in zip(cases, worker.answers(cases, LIMIT), strict=True):
        if kind == Kind.DIFFERS and worker.apart:  # each process has its own copy
            kind, answer = Kind.OUTPUTS, worker.apart[0]
        if kind != Kind.OUTPUTS:
            raise RuntimeError(f"{case.id}: {kind}: {answer}")
        yield Reply(case, store().expect(case), answer)


def judged(one: Planted, root: Path) -> tuple[list[Reply], Said | None]:
    """Returns the outputs of a port with a planted bug and the verdicts on them."""
    file = root / one.port.replace(".py", "_planted.py")
    file.write_text(one.text(), encoding="utf-8")
    found = replies(file, cases_of(one.port, root, one.mesh))
    return found, said(found, one.port.partition("_")[0])


def loss_ratio(found: Sequence[Reply]) -> float:
    """Returns the largest relative error of the loss."""
    losses = [output for reply in found for name, output in reply.outputs.items() if name in ("loss", "losses")]
    return max(float(np.abs(loss.got / loss.reference - 1).max()) for loss in losses)
