"""The sharded ports of tests/ports/sharded, right or with one mistake in them, their answers on a mesh, and what is said of them."""

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
LIMIT = 100.0  # seconds for an answer, on a busy machine, too
ASKED = ("transformer/left_padding", "transformer_vjp/short", "transformer_vjp/left_padding", "training/batch", "training/right_padding")
STEPS = "training_steps/sharded_recompute"  # of GPT-2 with keep masks
DONE, LONGEST = 4, 0.5  # how many steps of it, and the norm of clipped gradients
# sizes that no mesh makes alike: the vocabulary and the rows do not divide, key heads are fewer than 4
COMMON = {"attention_bias": True, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 41}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch_decoder.py": ("qwen3", COMMON | {"tie_word_embeddings": True, "hidden_size": 20, "head_dim": 6, "intermediate_size": 28}),
    "jax_decoder.py": ("olmo2", COMMON | {"hidden_size": 48, "intermediate_size": 28}),
}


@dataclass(frozen=True)
class Planted:
    """A mistake in a port: the edits that make it, the mesh that shows it, and the fault of the catalogue that it is."""

    port: str
    what: str
    mesh: str
    name: str
    edits: Sequence[Sequence[str]]

    def text(self) -> str:
        """The port with the mistake. Raises ValueError unless the right lines occur once."""
        text = (PORTS / self.port).read_text(encoding="utf-8")
        for right, wrong in self.edits:
            if text.count(right) != 1:
                raise ValueError(f"{self.port} must hold these lines once; it holds them {text.count(right)} times:\n{right}")
            text = text.replace(right, wrong)
        return text


@functools.cache
def planted() -> dict[str, Planted]:
    """The mistakes by name."""
    tables = tomllib.loads((PORTS / "faults.toml").read_text(encoding="utf-8"))
    rows = ((name, port, *row) for port, table in tables.items() for name, row in table.items())
    return {name: Planted(port, what, mesh, fault, edits) for name, port, mesh, fault, what, *edits in rows}


def cases_of(port: str, root: Path, mesh: str, dtype: str = "float64") -> list[Case]:
    """The cases of the port's model on a mesh, whose folder is made in `root`, those of few tokens; or the steps that it does."""
    if port not in MODELS:
        return [_clipped(case).at(dtype) for case in mesh_cases([Mesh.parse(mesh)]) if case.id == STEPS]
    family, settings = MODELS[port]
    if not (root / port / dtype).exists():
        (root / port).mkdir(exist_ok=True)
        new.write(family, root / port / dtype, dtype=dtype, settings=settings)
    found = like_cases(root / port, [Mesh.parse(mesh)])
    return [case.at(dtype) for case in found if case.id in ASKED]


def _clipped(case: Case) -> Case:
    """The first steps of a case, whose gradients are clipped."""
    given = {name: value[:DONE] if isinstance(value, np.ndarray) else value for name, value in case.inputs.items()}
    return dataclasses.replace(case, inputs={**given, "recipe.clip_norm": LONGEST})


def replies(file: Path, cases: Sequence[Case]) -> list[Reply]:
    """The answers of a port's file. Raises RuntimeError on one that is none."""
    os.environ.setdefault("XLA_FLAGS", QUICK_XLA)
    with contextlib.closing(open_worker(str(file), 1, LIMIT, mesh=cases[0].mesh)) as worker:
        if worker.greeting[0] != Kind.READY:
            raise RuntimeError(f"the port did not start: {worker.greeting}")
        return list(_replies(worker, cases))


def _replies(worker: Any, cases: Sequence[Case]) -> Iterator[Reply]:
    for case, (kind, answer) in zip(cases, worker.answers(cases, LIMIT), strict=True):
        if kind == Kind.DIFFERS and worker.apart:  # each process has a copy of its own
            kind, answer = Kind.OUTPUTS, worker.apart[0]
        if kind != Kind.OUTPUTS:
            raise RuntimeError(f"{case.id}: {kind}: {answer}")
        yield Reply(case, store().expect(case), answer)


def judged(one: Planted, root: Path) -> tuple[list[Reply], Said | None]:
    """The answers of a port with a mistake in it, and what is said of them."""
    file = root / one.port.replace(".py", "_planted.py")
    file.write_text(one.text(), encoding="utf-8")
    found = replies(file, cases_of(one.port, root, one.mesh))
    return found, said(found, one.port.partition("_")[0])


def loss_ratio(found: Sequence[Reply]) -> float:
    """How far the loss lies from the right one, at most, as a share of it."""
    losses = [output for reply in found for name, output in reply.outputs.items() if name in ("loss", "losses")]
    return max(float(np.abs(loss.got / loss.reference - 1).max()) for loss in losses)
