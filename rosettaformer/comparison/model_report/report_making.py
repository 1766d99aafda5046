"""Makes everything that a report says."""

import contextlib
import dataclasses
import datetime
import math
import os
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...common.processes import thread_share
from ...judge import runner
from ...judge.result import Result
from ...judge.status import Status
from ...judge.suite.checkpoint import checkpoint_cases
from ...judge.suite.fitting import fitting, require
from ...judge.summary import Summary
from ..timing.environment import environment
from . import training
from .layer_errors import LARGE, Layers, evaluate
from .library import write_port
from .predictions import Predictions, predict
from .reported_model import Subject
from .speed import Speed, measure
from .training_worker import STEPS, modes
from .workers import IMPLEMENTATIONS, LIBRARY, NAMES, OWN, opened, trainees

SECTIONS = {
    "predictions": "What the model says, and whether any choice flips.",
    "matrix": "The model's cases on every implementation, by dtype.",
    "layers": "The error after every layer, by dtype, and of every component.",
    "attention": "The attention of every head, and its difference from the reference.",
    "training": "A few training steps.",
    "speed": "Time and memory.",
}

OTHER_KINDS = {"canonical": "a canonical checkpoint", "run": "a run of rosettaformer train"}
OFTEN = 50  # comparisons of the matrix between two lines of the log

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What is made. shown: the dtype of the predictions and of the attention weights. compiled: whether implementations are timed in
    every mode, see `training_worker.modes`. limit: seconds for one answer.
    """

    names: Sequence[str] = tuple(IMPLEMENTATIONS)
    sections: Sequence[str] = tuple(SECTIONS)
    dtypes: Sequence[str] = ("float64", "float32", "bfloat16", "float16")
    shown: str = "float32"
    steps: int = 8
    rounds: int = 5
    compiled: bool = True
    seed: int = 0
    ignore: Sequence[str] = ()
    limit: float = 600.0

    @property
    def parts(self) -> list[str]:
        """The parts of the work, in their order; a line of the log begins with the part's name and a colon."""
        asked = [name for name in ("layers", "predictions", "matrix", "training", "speed") if name in self.sections]
        if "attention" in self.sections and "layers" not in asked:
            asked.insert(0, "layers")
        return ["start", *asked]


@dataclass
class Report:
    """ports: what the judge loads, by implementation. missing: implementations that cannot be asked, with the reason. load: how many
    processes wanted to run before the report began, on average over a minute; NaN if the system does not say. A section that was not
    requested is None.
    """

    subject: Subject
    options: Options
    ports: dict[str, str] = field(default_factory=dict)
    load: float = math.nan
    missing: dict[str, str] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)
    described: dict[str, dict[str, object]] = field(default_factory=dict)
    predictions: Predictions | None = None
    summary: Summary | None = None
    layers: Layers | None = None
    curves: training.Curves | None = None
    speed: Speed | None = None
    stamp: dict[str, str] = field(default_factory=dict)

    @property
    def present(self) -> list[str]:
        """The implementations that could be asked."""
        return [name for name in self.options.names if name not in self.missing]

    @property
    def own(self) -> list[str]:
        """Those of our implementations that could be asked."""
        return [name for name in self.present if name in OWN]

    @property
    def conforms(self) -> bool:
        """Whether everything that was compared agrees, and everything that was asked was answered."""
        return (self.summary is None or self.summary.conforms) and not self.problems


def make(subject: Subject, options: Options, progress: Progress = lambda text: None) -> Report:
    """Runs what the options ask for. progress is told what is being done, see `Options.parts`.

    Raises ValueError if there is no memory for it.
    """
    require(subject.count, [*options.dtypes, options.shown], len(options.names))
    report = Report(subject, options)
    with contextlib.suppress(OSError):  # the system does not say
        report.load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="rosettaformer-") as folder:
        for name in options.names:
            if name != LIBRARY or subject.kind == "hugging-face":
                own = OWN.get(name)
                report.ports[name] = own or write_port(Path(folder) / "port_of_transformers.py", subject.path)
            else:
                report.missing[name] = f"it loads folders of Hugging Face; this is {OTHER_KINDS[subject.kind]}"
        _evaluate(report, progress)
        if "matrix" in options.sections and report.present:
            report.summary = _matrix(report, progress)
    if {"training", "speed"} & {*options.sections} and report.present:
        _train(report, progress)
    report.stamp = _stamp(report)
    return report


def _evaluate(report: Report, progress: Progress) -> None:
    """Finds the available implementations; and compares each layer's output, and what the model says."""
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
        if ready and {"layers", "attention"} & {*options.sections}:
            dtypes, tree = (options.dtypes, True) if "layers" in options.sections else ((), False)
            report.layers = evaluate(report.subject, ready, dtypes, options.shown, options.limit, progress, tree)
            _problems(report, report.layers.problems)
        if ready and "predictions" in options.sections:
            progress(f"predictions: {options.shown}")
            report.predictions = predict(report.subject, ready, options.shown, options.limit, report.problems)


def _matrix(report: Report, progress: Progress) -> Summary:
    cases = checkpoint_cases(report.subject.file, report.options.ignore)
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
    """Trains for the curves, and then times: in the same processes, which hold the model."""
    options, subject = report.options, report.subject
    steps = options.steps if "training" in options.sections else 0
    timed = report.present if "speed" in options.sections else report.own
    plan = training.plan(subject, max(1, steps), options.seed)
    how = {name: modes(STEPS, name, options.compiled)[0] for name in report.own}
    if steps:
        report.curves = training.reference(plan, progress)
        said = ", ".join(f"{NAMES[name]} {mode}" for name, mode in how.items() if name != "numpy")
        report.curves.notes = [*plan.notes, *([said] if said else [])]
    arguments = {name: f"{name}:{subject.path.resolve()}" if name == LIBRARY else name for name in timed}
    with trainees(arguments, options.limit) as asks:
        for name, mode in how.items() if steps else ():
            progress(f"training: {steps} steps of {name}")
            kind, answer = asks[name]("curve", plan.config.to_dict(), dict(plan.values), plan.recipe.to_dict(), [*plan.batches], mode)
            if kind == "answer" and report.curves:
                report.curves.found[name] = [tuple(pair) for pair in answer]
            else:
                _problems(report, {name: [f"training: {kind}, {answer}"]})
        if "speed" in options.sections:
            report.speed = Speed(options.rounds, thread_share(), options.compiled, report.load)
            measure(report.speed, asks, subject, plan, progress)
            _problems(report, report.speed.problems)


def _problems(report: Report, found: dict[str, list[str]]) -> None:
    for name, problems in found.items():
        report.problems.setdefault(name, []).extend(problems)


def _stamp(report: Report) -> dict[str, str]:
    """Returns the lines on the environment, by their subjects."""
    where = environment(thread_share(), {})
    options = report.options
    return {
        "command": shlex.join(["rosettaformer", *sys.argv[1:]]),
        "made": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        **where,
        "load": f"{report.load:.1f} processes wanted to run before the report began, on average over a minute",
        **{name: _about(about) for name, about in report.described.items() if about.get("version")},
        **{f"SHA-256 of {file}": digest for file, digest in report.subject.digests.items()},
        "seed": str(options.seed),
    }


def _about(about: dict[str, object]) -> str:
    versions, devices = about.get("version"), about.get("devices")
    parts = [", ".join(f"{name} {number}" for name, number in versions.items()) if isinstance(versions, dict) else ""]
    parts.append(f"on {', '.join(devices)}" if isinstance(devices, (list, tuple)) else "")
    parts.append(f"matmul precision {about['precision']}" if about.get("precision") else "")
    return "; ".join(filter(None, parts)) or "ready"
