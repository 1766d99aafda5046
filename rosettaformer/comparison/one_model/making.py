"""Collects the contents of a report."""

import contextlib
import dataclasses
import datetime
import math
import os
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...common.processes import Answer, thread_share
from ...judge import runner
from ...judge.report.html import described
from ...judge.result import Result
from ...judge.status import Status
from ...judge.suite.checkpoint import checkpoint_cases
from ...judge.suite.fitting import fitting, require
from ...judge.summary import Summary
from ..engine.beside import Beside, opened
from ..engine.process import Asked
from ..engine.speed import Speed, Tell
from ..timing.environment import environment
from ..timing.rows import BOUNDS, LOSS_BOUNDS
from . import training
from .implementations import IMPLEMENTATIONS, LIBRARY, NAMES, OWN, port_of
from .layer_errors import Layers, evaluate, whole_case
from .predictions import Predictions, predict
from .subject import LARGE, Subject
from .trainee import STEPS, modes

SECTIONS = {
    "predictions": "Predictions, and choices that flip.",
    "matrix": "Results of the model's cases, by implementation and dtype.",
    "layers": "Errors after every layer and of every component, by dtype.",
    "attention": "Attention weights of every head, and their differences from the reference.",
    "training": "A few training steps.",
    "speed": "Time and memory.",
}

OTHER_KINDS = {"canonical": "a canonical checkpoint", "run": "a run of rosettaformer train"}
OFTEN = 50  # comparisons between two lines of progress

Progress = Callable[[str], None]


SHOWN = "float32"  # dtype of predictions and attention weights


@dataclass(frozen=True)
class Options:
    """Contents of a report.

    quick: fewer rounds, and one mode per implementation (see `trainee.modes`). limit: seconds for
    one request.
    """

    names: Sequence[str] = tuple(IMPLEMENTATIONS)
    sections: Sequence[str] = tuple(SECTIONS)
    dtypes: Sequence[str] = ("float64", "float32", "bfloat16", "float16")
    steps: int = 8
    quick: bool = False
    seed: int = 0
    ignore: Sequence[str] = ()
    limit: float = 600.0

    @property
    def parts(self) -> list[str]:
        """The parts of the work, in order; progress lines start with a part and a colon."""
        asked = [name for name in ("layers", "predictions", "matrix", "training", "speed") if name in self.sections]
        if "attention" in self.sections and "layers" not in asked:
            asked.insert(0, "layers")
        return ["start", *asked]


@dataclass
class Report:
    """The contents of a report; sections that were not requested are None.

    ports: port by implementation. missing: implementations that cannot run, with the reason. load:
    load average of the last minute before the start; NaN if unknown.
    """

    subject: Subject
    options: Options
    ports: dict[str, str] = field(default_factory=dict)
    load: float = math.nan
    missing: dict[str, str] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)
    described: dict[str, dict[str, Any]] = field(default_factory=dict)
    predictions: Predictions | None = None
    summary: Summary | None = None
    layers: Layers | None = None
    curves: training.Curves | None = None
    speed: Speed | None = None
    stamp: dict[str, str] = field(default_factory=dict)

    @property
    def present(self) -> list[str]:
        """The implementations that ran."""
        return [name for name in self.options.names if name not in self.missing]

    @property
    def own(self) -> list[str]:
        """The implementations of this project that ran."""
        return [name for name in self.present if name in OWN]

    @property
    def conforms(self) -> bool:
        """Whether all comparisons agree and no implementation failed."""
        return (self.summary is None or self.summary.conforms) and not self.problems


def make(subject: Subject, options: Options, progress: Progress = lambda text: None) -> Report:
    """Runs the requested sections. progress: called with each step, see `Options.parts`.

    Raises ValueError if the model needs too much memory.
    """
    require(subject.count, [*options.dtypes, SHOWN], len(options.names))
    report = Report(subject, options)
    with contextlib.suppress(OSError):  # unknown on this system
        report.load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="rosettaformer-") as folder:
        for name in options.names:
            if name != LIBRARY or subject.kind == "hugging-face":
                report.ports[name] = port_of(name, subject.path, Path(folder))
            else:
                report.missing[name] = f"it needs a Hugging Face checkpoint; this is {OTHER_KINDS[subject.kind]}"
        _evaluate(report, progress)
        if "matrix" in options.sections and report.present:
            report.summary = _matrix(report, progress)
    if {"training", "speed"} & {*options.sections} and report.present:
        _train(report, progress)
    report.stamp = _stamp(report)
    return report


def _evaluate(report: Report, progress: Progress) -> None:
    """Finds the available implementations, and compares layers and predictions."""
    options = report.options
    progress(f"start: {', '.join(report.ports)}")
    with opened(report.ports, options.limit) as workers:
        for name, worker in workers.items():
            kind, about = worker.greeting
            if kind == "ready":
                report.described[name] = about
            else:
                report.missing[name] = str(about) if kind == "missing" or name == LIBRARY else f"{kind}: {about}"
        ready = {name: worker for name, worker in workers.items() if name in report.described}
        beside = Beside(ready, options.limit, report.subject.count >= LARGE, report.problems)
        if ready and {"layers", "attention"} & {*options.sections}:
            dtypes, tree = (options.dtypes, True) if "layers" in options.sections else ((), False)
            report.layers = evaluate(report.subject, beside, dtypes, SHOWN, progress, tree)
        if ready and "predictions" in options.sections:
            progress(f"predictions: {SHOWN}")
            report.predictions = predict(report.subject, beside, SHOWN)


def _matrix(report: Report, progress: Progress) -> Summary:
    cases = checkpoint_cases(report.subject.file, report.options.ignore, report.options.dtypes)
    cases = fitting(cases, required=False, sent=len(report.present))
    names = {report.ports[name]: name for name in report.present}
    asked: dict[str, int] = {}
    done = 0

    def begin(port: str, modes: Counter[str]) -> None:
        asked[port] = modes.total()

    def count(result: Result) -> None:
        nonlocal done
        done += result.status != Status.NOT_COVERED
        if done % OFTEN == 0 and result.status != Status.NOT_COVERED:
            progress(f"matrix: {done}" + (f" of {sum(asked.values())}" if len(asked) == len(names) else "") + " comparisons")

    progress(f"matrix: {len(cases)} cases")
    quick = report.subject.count < LARGE  # small models take longer to compile than to run
    options = report.options
    rows = runner.run(cases, [*names], options.dtypes, limit=options.limit, progress=count, begin=begin, quick_compile=quick)
    return Summary([dataclasses.replace(row, port=names[row.port]) for row in rows])


def _train(report: Report, progress: Progress) -> None:
    """Trains for the curves, then times, in the same processes, each with all threads."""
    options, subject, threads = report.options, report.subject, thread_share()
    steps = options.steps if "training" in options.sections else 0
    timed = report.present if "speed" in options.sections else report.own
    plan = training.plan(subject, max(1, steps), options.seed)
    how = {name: modes(STEPS, name, not options.quick)[0] for name in report.own}
    if steps:
        report.curves = training.reference(plan, progress)
        said = ", ".join(f"{NAMES[name]} {mode}" for name, mode in how.items() if name != "numpy")
        report.curves.notes = [*plan.notes, *([said] if said else [])]
    with contextlib.ExitStack() as stack:
        sides: dict[str, Asked] = {}
        for name in timed:
            argument = f"{name}:{subject.path.resolve()}" if name == LIBRARY else name
            sides[name] = Asked(f"{__package__}.trainee", argument, options.limit, threads, "the implementation")
            stack.callback(sides[name].close)
        for name, mode in how.items() if steps else ():
            progress(f"training: {steps} steps of {name}")
            kind, answer = sides[name].tell("curve", mode, [*plan.batches], *plan.sent)
            if kind == "answer" and report.curves:
                report.curves.found[name] = [tuple(pair) for pair in answer]
            else:
                report.problems.setdefault(name, []).append(f"training: {kind}, {answer}")
        if "speed" in options.sections:
            report.speed = Speed(
                3 if options.quick else 5, threads, not options.quick, report.load, problems=report.problems, progress=progress
            )
            _measure(report.speed, {name: side.tell for name, side in sides.items()}, subject, plan)


def _measure(speed: Speed, sides: Mapping[str, Tell], subject: Subject, plan: training.Plan) -> None:
    """Times the forward pass, then a training step of the plan, eager and compiled."""
    speed.tokens = " and ".join(f"{len(words)} {side} tokens" for side, words in subject.tokens.items() if len(words))
    speed.alone = {name: _number(tell("alone")) for name, tell in sides.items()}
    case = whole_case(subject).at("float32")
    given = case.component, case.config.to_dict(), dict(case.parameters), dict(case.inputs)
    speed.table("forward pass", sides, "passes", *given, speed.compiled, bound=BOUNDS["float32"])
    for mode in ("eager", "compiled"):
        steps = {name: tell for name, tell in sides.items() if name in STEPS and mode in modes(STEPS, name, speed.compiled)}
        if steps:
            speed.table("training step", steps, "training", mode, plan.batches[0], *plan.sent, bound=LOSS_BOUNDS["float32"])
    speed.peaks = {name: _number(tell("peak")) for name, tell in sides.items()}


def _number(answer: Answer) -> float:
    return float(answer[1]) if answer[0] == "answer" else math.nan


def _stamp(report: Report) -> dict[str, str]:
    """Returns the description of the environment."""
    where = environment(thread_share(), {})
    options = report.options
    return {
        "command": shlex.join(["rosettaformer", *sys.argv[1:]]),
        "made": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        **where,
        "load": f"load average of {report.load:.1f} in the minute before the start",
        **{name: described(about) for name, about in report.described.items() if about.get("version")},
        **{f"SHA-256 of {file}": digest for file, digest in report.subject.digests.items()},
        "seed": str(options.seed),
    }
