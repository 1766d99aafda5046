"""Makes docs/scaling.md: the plans of two models, and plans beside what compiled programs and traces show, from docs/scaling/measured.json.

`make scaling` measures that, too: python tools/scaling.py --measure
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from documents import HOUSE, made_by

from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy.recipe import PAPER
from rosettaformer.atomic import write_text
from rosettaformer.scaling import memory, traffic
from rosettaformer.scaling.plan import GIB, plan
from rosettaformer.scaling.step import Step
from rosettaformer.scaling.strategies import NODE, STRATEGIES, problem

__all__ = ["DATA", "PAGE", "page"]

PAGE, DATA = HOUSE / "docs" / "scaling.md", HOUSE / "docs" / "scaling" / "measured.json"
DEVICES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
LIMIT = 80  # GiB of a device


class Model(NamedTuple):
    """A preset and its batch: rows for each device, and their tokens, on each side."""

    name: str
    title: str
    rows: int
    length: int

    @property
    def config(self) -> TransformerConfig:
        """Returns the preset."""
        return preset(self.name)

    def step(self, strategy: str, devices: int, recompute: bool) -> Step | str:
        """Returns the step of a strategy, or why there is none."""
        mesh = STRATEGIES[strategy](self.config, devices)
        return problem(self.config, mesh) or Step(
            config=self.config, mesh=mesh, rows=self.rows * devices, source=self.length, target=self.length, dtype="float32",
            recompute=recompute, recipe=PAPER,
        )  # fmt: skip


MODELS = (
    Model("llama31_8b", "Llama 3.1 of 8 billion parameters", 1, 8192),
    Model("paper_big", "The paper's big model", 32, 98),
)


def _gib(size: float) -> str:
    return f"{size / GIB:,.0f}" if size >= 99.5 * GIB else f"{size / GIB:.1f}" if size >= GIB / 10 else f"{size / GIB:.2f}"


def _memory(found: Step | str) -> float:
    return float("inf") if isinstance(found, str) else memory.total(memory.memory(found))


def _fits(model: Model, strategy: str, recompute: bool) -> list[int]:
    return [devices for devices in DEVICES if _memory(model.step(strategy, devices, recompute)) <= LIMIT * GIB]


def _where(model: Model) -> Iterator[str]:
    """On how many devices each strategy fits."""
    yield f"| `{model.name}` fits {LIMIT} GiB on so many devices | as it is | with recomputation |"
    yield "|---|---|---|"
    for strategy in STRATEGIES:
        cells = (", ".join(map(str, _fits(model, strategy, recompute))) or "none" for recompute in (False, True))
        yield f"| {strategy} | {' | '.join(cells)} |"


def _of_memory(model: Model) -> Iterator[str]:
    yield f"| GiB of a device | {' | '.join(STRATEGIES)} |"
    yield "|---|" + "---|" * len(STRATEGIES)
    for devices in DEVICES:
        cells = []
        for strategy in STRATEGIES:
            sizes = [_memory(model.step(strategy, devices, recompute)) for recompute in (False, True)]
            shown = (f"**{_gib(size)}**" if size <= LIMIT * GIB else _gib(size) for size in sizes)
            cells.append("" if float("inf") in sizes else ", ".join(shown))
        yield f"| {devices} | {' | '.join(cells)} |"


def _of_traffic(model: Model) -> Iterator[str]:
    yield f"| GiB over data, over model | {' | '.join(STRATEGIES)} |"
    yield "|---|" + "---|" * len(STRATEGIES)
    for devices in DEVICES:
        found = [model.step(strategy, devices, False) for strategy in STRATEGIES]
        over = (
            [""] if isinstance(step, str) else [_gib(traffic.total(step, axis)) for axis in (traffic.DATA, traffic.MODEL)] for step in found
        )
        yield f"| {devices} | {' | '.join(', '.join(cells) for cells in over)} |"


def _parts(model: Model, strategy: str, devices: int) -> Iterator[str]:
    """One plan, in full."""
    step = model.step(strategy, devices, True)
    assert isinstance(step, Step)
    found = plan(step)
    held = ", ".join(f"{what} {_gib(size)}" for what, size in found["memory"].items())
    yield f"{devices} devices, {strategy}, `{found['mesh']}`, with recomputation. GiB of a device: {held}."
    yield ""
    yield "| what is sent | collective | over | GiB | by a ring |"
    yield "|---|---|---|---|---|"
    for row in found["traffic"]:
        if row["payload"] > GIB / 1000:
            yield f"| {row['purpose']} | {row['kind']} | {row['axis']} | {_gib(row['payload'])} | {_gib(row['ring'])} |"


def _model(model: Model) -> Iterator[str]:
    count = parameters.count(model.config)
    sides = "source and as many target tokens" if model.config.cross_attention else "tokens"
    rows = "1 row" if model.rows == 1 else f"{model.rows} rows"
    yield f"## {model.title}"
    yield ""
    yield f"`{model.name}`: {count:,} parameters. The batch has {rows} of {model.length:,} {sides} for each device. float32."
    yield ""
    yield f"Memory, without and with recomputation; **bold** fits {LIMIT} GiB:"
    yield ""
    yield from _of_memory(model)
    yield ""
    yield "Traffic of a device and a step, without recomputation:"
    yield ""
    yield from _of_traffic(model)
    yield ""
    yield from _parts(model, "both", 64)
    yield ""
