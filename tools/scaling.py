"""Plans two models on many devices and compares plans with measurements: see docs/scaling.md.

Run it with `make evidence STEP=scaling`.
"""

import functools
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from evidence import kept as once
from evidence import write
from measured_steps import Measured, kept, measure

from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy.recipe import PAPER
from reference_numpy.sharding import Mesh
from rosettaformer.use.scaling import memory, traffic
from rosettaformer.use.scaling.plan import GIB, gib
from rosettaformer.use.scaling.step import Step
from rosettaformer.use.scaling.strategies import STRATEGIES, problem

DEVICES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
LIMIT = 80  # GiB per device
NUMBER = 8  # bytes of a payload that is not a tensor

# sizes of small models, powers of two except the vocabulary
SIZES = {"source_vocabulary": 104, "target_vocabulary": 104, "model_width": 32, "heads": 8, "key_value_heads": 8, "key_size": 8,
          "value_size": 8, "feed_forward_width": 64}  # fmt: skip
# small models of the same structure, all parts of which are split by every mesh below
SMALL = {
    "paper_big": preset("paper_big", **SIZES, encoder_layers=2, decoder_layers=2),
    "llama31_8b": preset("llama31_8b", **SIZES | {"key_value_heads": 4}, decoder_layers=3),
}
MESHES = ("data=1", "data=2", "data=2,replicate", "model=2", "data=4", "data=4,replicate", "model=4", "data=2,model=2",
          "data=8", "model=8", "data=4,model=2", "data=2,model=4")  # fmt: skip
MORE = ("data=2,model=2",)  # with microbatches, and with recomputation


class Model(NamedTuple):
    """A preset and its batch: rows per device, and tokens per row on each side."""

    name: str
    rows: int
    length: int

    @property
    def config(self) -> TransformerConfig:
        """The preset."""
        return preset(self.name)

    def step(self, strategy: str, devices: int, recompute: bool, backend: str = "torch") -> Step | None:
        """Returns the step of a strategy; None if the mesh does not fit the model."""
        mesh = STRATEGIES[strategy](self.config, devices)
        if problem(self.config, mesh):
            return None
        return Step(config=self.config, mesh=mesh, rows=self.rows * devices, source=self.length, target=self.length, dtype="float32",
                    recompute=recompute, backend=backend, recipe=PAPER)  # fmt: skip


MODELS = (
    Model("llama31_8b", 1, 8192),
    Model("paper_big", 32, 98),
)


# (strategy, devices) -> bytes held without and with recomputation; None if the mesh does not fit
Plans = dict[tuple[str, int], list[int]]


def _rows(model: Model) -> Plans:
    found: Plans = {}
    for strategy, devices in itertools.product(STRATEGIES, DEVICES):
        both = (model.step(strategy, devices, recompute) for recompute in (False, True))
        found[strategy, devices] = [sum(memory.memory(step).values()) for step in both if step is not None]
    return found


def _fitting(rows: Plans, strategy: str, recompute: bool) -> str:
    """Returns the single range of device counts on which a strategy fits."""
    held = {devices: row[recompute] for devices in DEVICES if (row := rows[strategy, devices])}
    found = [devices for devices, size in held.items() if size <= LIMIT * GIB]
    if len(found) < 2:
        return str(*found) or "none"
    first, last = found[0], found[-1]
    assert found == [devices for devices in DEVICES if first <= devices <= last]
    return "all" if found == [*DEVICES] else f"from {first}" if last == DEVICES[-1] else f"{first} to {last}"


def _result(rows: dict[str, Plans]) -> Iterator[str]:
    """Yields a table of the device counts on which each strategy fits."""
    columns = [(name, recompute) for name in rows for recompute in (False, True)]
    titles = (f"`{name}`" + ", recomputed" * recompute for name, recompute in columns)
    yield f"| fits {LIMIT} GiB | {' | '.join(titles)} |"
    yield "|---|" + "---|" * len(columns)
    for strategy in STRATEGIES:
        yield f"| {strategy} | {' | '.join(_fitting(rows[name], strategy, recompute) for name, recompute in columns)} |"


def _uneven(rows: Plans) -> str:
    """Describes what 1,000 devices mean for an even split."""
    model, devices = MODELS[0], DEVICES[-1]
    step, torch = model.step("fully sharded", devices, True, "jax"), rows["fully sharded", devices]
    assert step is not None
    each = [*step.parameters()]
    size = sum(memory.memory(step).values())
    whole = sum(step.own(parameter) for parameter in each if not step.is_split(parameter)) / parameters.count(model.config)
    return (
        f"{devices:,} devices divide {1 - whole:.0%} of the parameters of `{model.name}`: no axis is a multiple of {devices:,}. JAX keeps "
        f"undivided\nparameters whole ({gib(size)} GiB recomputed), while FSDP2 splits them into padded shards ({gib(torch[True])} GiB). "
        "The tables show torch."
    )


def steps() -> Iterator[tuple[str, Step]]:
    """Yields the steps to measure, with their models' names."""
    for (name, config), backend, text in itertools.product(SMALL.items(), ("torch", "jax"), MESHES):
        for recompute, parts in ((False, 1), (False, 2), (True, 1)) if text in MORE else ((False, 1),):
            recipe = PAPER.replace(clip_norm=1.0, microbatches=parts)
            yield name, Step(config=config, mesh=Mesh.parse(text), rows=16, source=8, target=12, dtype="float32", recompute=recompute,
                             backend=backend, recipe=recipe)  # fmt: skip


Rows = dict[str, Measured]  # step label -> measurement


def sent(step: Step) -> list[tuple[str, int]]:
    """Returns the collectives of a step's plan, in the form of measurements."""
    return [(each.kind, each.payload) for each in traffic.traffic(step)]


def gathered(sent: list[tuple[str, int]]) -> int:
    """Returns the gathered bytes; scalars do not count."""
    return sum(size for kind, size in sent if kind == traffic.GATHER and size > NUMBER)


def added(sent: list[tuple[str, int]]) -> int:
    """Returns the bytes reduced by all-reduce or reduce-scatter; scalars do not count."""
    return sum(size for kind, size in sent if kind in (traffic.REDUCE, traffic.SCATTER) and size > NUMBER)


def label(name: str, step: Step) -> str:
    """Returns the first cells of a measured step's row."""
    variant = ", 2 microbatches" * (step.recipe.microbatches > 1) + ", recomputed" * step.recompute
    return f"{name} | {step.backend} | {step.mesh}{variant}"


def _measured(rows: Rows) -> Iterator[str]:
    yield "| model | backend | mesh | gathered, plan | measured | added up, plan | measured | state, plan | held |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, step in steps():
        planned, found, held = sent(step), rows[label(name, step)], memory.memory(step)
        cells = [gathered(planned), gathered(found.sent), added(planned), added(found.sent), held["parameters"] + held["moments"],
                 sum(found.held.values())]  # fmt: skip
        yield f"| {label(name, step)} | {' | '.join(f'{cell:,}' for cell in cells)} |"


def differences(step: Step, found: Measured) -> list[str]:
    """Yields where a step differs from its plan: sums by over 5 %, the rest at all."""
    planned, held = sent(step), memory.memory(step)
    as_planned = {
        "kinds": {kind for kind, _ in found.sent} <= {kind for kind, _ in planned} | {traffic.REDUCE},
        "gathered": gathered(found.sent) == gathered(planned),
        "added up": abs(added(found.sent) - added(planned)) <= 0.05 * added(planned),
        "state": found.held == {what: held[what] for what in ("parameters", "moments")},
    }
    return [what for what, so in as_planned.items() if not so]


def _group(group: tuple[str, int]) -> dict[str, Any]:
    """Measures the steps of a backend on that many devices."""
    named = [(name, step) for name, step in steps() if (step.backend, step.mesh.devices) == group]
    found = measure([step for _, step in named])
    return {label(*pair): [one.sent, one.held] for pair, one in zip(named, found, strict=True)}


def main() -> None:
    """Writes the page. Exits with 1 if a measured step differs from its plan."""
    folder, rows = Path(sys.argv[1]), {}
    for group in dict.fromkeys((step.backend, step.mesh.devices) for _, step in steps()):
        found = once(folder, "{} {}".format(*group), functools.partial(_group, group))
        rows |= {name: Measured([(kind, size) for kind, size in each], held) for name, (each, held) in found.items()}
    plans = {model.name: _rows(model) for model in MODELS}
    ratios = [kept(step) / memory.activations(step) for _, step in steps() if step.backend == "torch" and step.mesh.devices == 1]
    lines = ["# Planned and measured training steps", "", *_result(plans), "", _uneven(plans[MODELS[0].name]), ""]
    lines += ["Plans by `rosettaformer plan PRESET --mesh N --rows N --length N`.", ""]
    lines += ["## Comparison with measured steps", "", *_measured(rows), ""]
    lines += [f"For the small models, eager torch on a CPU keeps {min(ratios):.2f} to {max(ratios):.2f} times the planned activations."]
    write(folder, "scaling.md", "\n".join(lines) + "\n")
    wrong = {label(*pair): found for pair in steps() if (found := differences(pair[1], rows[label(*pair)]))}
    sys.exit("\n".join(f"{name}: {', '.join(found)}" for name, found in wrong.items()) or 0)


if __name__ == "__main__":
    main()
