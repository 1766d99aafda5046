"""Creates a page for each published model: config, checkpoint tensors, forward pass."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from math import prod
from typing import TYPE_CHECKING

from reference_numpy import parameters

from ...files.checkpoints import tables
from ...files.checkpoints.hugging_face import FAMILIES
from ...files.checkpoints.hugging_face.family import starred
from ..code import Code
from ..site import Page
from . import keys
from .following import Pass, followed
from .published import MODELS, Model

if TYPE_CHECKING:
    from ..build import Run

# models that readers search for but only `compare` supports
OTHERS = ("T5", "mT5", "Whisper", "DeepSeek", "Falcon", "Mamba", "ViT", "CLIP")


def pages(run: "Run") -> Iterator[Page]:
    """Yields the index and a page for each model."""
    names = (*((family, "#families") for family in FAMILIES), *((other, "#others") for other in OTHERS))
    yield Page("models/index.html", "Models", "models.html.jinja", {"families": FAMILIES}, names=names)
    passes = followed([model.case for model in MODELS])
    for model in MODELS:
        yield _page(model, passes[model.case])


def _page(model: Model, followed: Pass) -> Page:
    tensors = _rows(model)
    origin = f"rosettaformer/guide/snippets/models/{model.name}.py"
    snippet = (resources.files("rosettaformer.guide") / "snippets" / "models" / f"{model.name}.py").read_text(encoding="utf-8")
    values = {
        "model": model,
        "choices": model.choices(),
        "tensors": tensors,
        "parameters": sum(map(prod, parameters.shapes(model.config).values())),  # tied ones count once
        "followed": followed,
        "keys": (found := keys.keys(model, {step.component for step in followed.steps})),
        "key_notes": keys.notes(model),
        "single": keys.single(model),
        "snippet": Code(snippet, origin, caption=f"{model.name}.py"),
    }
    names: tuple[str | tuple[str, str], ...] = (model.name, *model.classes, *((row.name, "#tensors") for row in tensors))
    names += (("load a checkpoint", "#load"),)
    names += (("config.json", "#entries"), *((key.name, f"#key-{key.name}") for key in found)) if found else ()
    return Page(f"models/{model.name}.html", model.title, "model.html.jinja", values, model.summary, names)


@dataclass(frozen=True)
class Part:
    """A canonical tensor inside a stored one. stored: its axes there; change: its conversion."""

    name: str
    axes: str
    shape: tuple[int, ...]
    stored: str
    change: str


@dataclass(frozen=True)
class Tensor:
    """A stored tensor. counts: of its layers and experts. tied: the canonical tensor it repeats."""

    name: str
    shape: tuple[int, ...]
    counts: tuple[int, ...]
    parts: tuple[Part, ...]
    tied: str = ""


def _rows(model: Model) -> list[Tensor]:
    """Returns the tensors of the model's table that its config uses, in the table's order."""
    natives = {native.name: native for native in tables.natives(model.table, model.config)}
    totals = Counter(starred(name) for name in natives)
    ties = parameters.ties(model.config)
    found = []
    for row in model.table:
        name = row.name.replace("*", "0")
        if name not in natives:
            continue
        native = natives[name]
        each = 1 if native.place is None else model.config.experts
        parts = tuple(_part(native, index, part.name) for index, part in enumerate(row.parts))
        counts = totals[row.name] // each, each
        found.append(Tensor(row.name, native.shape, counts, parts, ties.get(native.parts[0][0].name, "")))
    return found


def _part(native: tables.Native, index: int, name: str) -> Part:
    part, axes, sizes = native.parts[index]
    count = len(native.parts)
    within = f" in each of {native.groups} groups" if native.groups > 1 else ""
    steps = [f"part {index + 1} of {count}{within}"] if count > 1 else []
    steps += ["split heads"] if "(" in part.axes else []
    steps += ["transpose"] if part.axes.replace("(", "").replace(")", "").split() != axes.split() else []
    if native.place is not None:
        steps, axes = [*steps, "stack"], f"x {axes}"
    return Part(name, axes, tuple(sizes[letter] for letter in axes.split()), part.axes, ", ".join(steps) or "as it is")
