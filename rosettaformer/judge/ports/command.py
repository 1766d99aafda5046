"""Ports that are commands: they read case files and write outputs (docs/command-port.md)."""

import contextlib
import os
import shlex
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference_numpy.suggestions import known

from ...common.processes import Answer, Program, limited_threads, printable
from ...common.processes.wire import answer_limit
from ...common.reading import parse_json
from ..case import DTYPES, Case, pinned
from ..expectation import statistics
from ..expectation.components import COMPONENTS, OWN
from ..status import UNSTARTED, Kind
from ..suite import prompts
from ..suite.case_files import answer_path, read_answer, write_cases
from ..suite.limits import limits_of
from .port_server import UNEQUAL, equal
from .process import RESTARTS, Worker

PREFIX = "command:"  # prefix of the names of such ports
BATCH_BYTES = 1 << 28  # the most disk space for the cases of one call, roughly
MOST_SAID = 1 << 20  # the most bytes that --describe may print
SAME = 2  # give up after this many equal failures on one checkpoint and one more on another, without any output
POLL = 0.05  # seconds between two checks for new outputs


class Command(Worker):
    """A worker that passes many cases to each call of a command.

    name: `command:` and the command line. The line is split like in a shell, but no shell runs it.
    """

    def __init__(self, name: str, threads: int, start_limit: float, stopped: threading.Event | None = None) -> None:
        self.port, self.left, self._stopped = name, 0, stopped
        self._environment = limited_threads(threads)
        try:
            self._arguments = _arguments(name.removeprefix(PREFIX))
            self.greeting: Answer = Kind.READY, _about(self._describe(start_limit))
        except (ValueError, OSError) as error:
            self.greeting = Kind.NOT_STARTED, printable(str(error))

    def _describe(self, limit: float) -> Any:
        """Returns the output of `--describe`; None if the command does not support the option."""
        with self._running("--describe", talks=True) as program:
            try:
                deadline = time.monotonic() + limit
                text = program.output(MOST_SAID, deadline)
                program.wait(deadline)
                return parse_json(text) if program.code == 0 else None
            except (TimeoutError, ValueError):
                return None

    def call(self, method: str, *arguments: Any, limit: float = 120.0) -> Answer:
        """Returns the answer to a case. Every other method is not covered."""
        return next(self.answers(arguments, limit)) if method == "answer" else (Kind.NOT_COVERED, "a command cannot be traced")

    def answers(self, cases: Iterable[Case], limit: float) -> Iterator[Answer]:
        """Yields the answers to many cases, in order. limit: seconds until the next output."""
        lost = _Lost()
        for batch in batches(cases):
            yield from self._batch(batch, limit, lost)

    def _batch(self, batch: list[Case], limit: float, lost: "_Lost") -> Iterator[Answer]:
        """Yields a batch's answers. If a call fails, one case is blamed and the rest runs again."""
        waiting = {path: case for case in batch for path in _paths(case)}
        answers: dict[str, Answer] = {}
        deaths, end = 0, None
        while waiting and deaths <= RESTARTS and lost.count < SAME + (not deaths):
            new, end = self._run(waiting, limit)
            lost.hear(end, new, waiting)
            answers |= new
            waiting = _unanswered(waiting, new)
            if not end:
                break
            if waiting:
                deaths += 1
                for path in _paths(next(iter(waiting.values()))):
                    answers[path] = end
                    waiting.pop(path, None)
        silence: Answer = (
            (Kind.SKIPPED, f"not run, because the command had failed {deaths} times") if end else (Kind.NOT_COVERED, prompts.SILENCE)
        )
        silence = (Kind.SKIPPED, UNSTARTED) if lost.count >= SAME else silence
        for case in batch:
            yield _one(case, [answers.get(path, silence) for path in _paths(case)])

    def _run(self, cases: dict[str, Case], limit: float) -> tuple[dict[str, Answer], Answer | None]:
        """Returns the answers of one call by path, and how it failed; None if it did not."""
        folder = _folder(next(iter(cases.values())))
        return self._read(folder, cases, limit) if folder else self._compute(cases, limit)

    def _read(self, model: str, cases: dict[str, Case], limit: float) -> tuple[dict[str, Answer], Answer | None]:
        """Returns the logits that the command computes for prompts, given a checkpoint."""
        asked = {path: case for path, case in cases.items() if prompts.is_prompt(case)}
        answers: dict[str, Answer] = dict.fromkeys(cases.keys() - asked, (Kind.NOT_COVERED, "a command only computes logits"))
        if not asked:
            return answers, None
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            questions, outputs = Path(folder, "prompts"), Path(folder, "logits")
            questions.mkdir()
            outputs.mkdir()
            files = {path: outputs / f"{name}.npy" for path, name in prompts.write(questions, asked).items()}
            with self._running(model, str(questions), str(outputs)) as program:
                end = _end(program, list(files.values()), limit)
            answers |= prompts.read(files, asked, died=end is not None)
            if end:
                return answers, (end[0], _named(end[1], {model: "FOLDER", str(questions): "PROMPTS", str(outputs): "LOGITS"}))
            silence = Kind.NOT_COVERED, prompts.silence(outputs, list(files.values()), program.end)
            return dict.fromkeys(asked, silence) | answers, None

    def _compute(self, cases: dict[str, Case], limit: float) -> tuple[dict[str, Answer], Answer | None]:
        """Returns the command's outputs for cases, whose files include the parameters."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            questions, outputs = Path(folder, "cases"), Path(folder, "outputs")
            questions.mkdir()
            for path in cases:
                (outputs / path).parent.mkdir(parents=True, exist_ok=True)
            write_cases(questions, cases)
            with self._running(str(questions), str(outputs)) as program:
                end = _end(program, [outputs / path for path in cases], limit)
            return _collect(outputs, cases, died=end is not None), end

    @contextlib.contextmanager
    def _running(self, *arguments: str, talks: bool = False) -> Iterator[Program]:
        """Runs the command, and removes all its processes afterward."""
        program = Program([*self._arguments, *arguments], self._environment, talks, stopped=self._stopped)
        try:
            yield program
        finally:
            self.left += program.close()

    def close(self) -> None:
        """Does nothing: no process remains between two calls."""


@dataclass
class _Lost:
    """Counts consecutive calls for whole models that failed in the same way without an output."""

    end: Answer | None = None
    count: int = 0

    def hear(self, end: Answer | None, answers: Mapping[str, Answer], cases: Mapping[str, Case]) -> None:
        """Counts a call, its end, and its answers to the cases."""
        whole = any(case.folder for case in cases.values())
        if not (whole and end) or any(prompts.is_prompt(cases[path]) for path in answers):
            self.count = 0
        else:
            self.count, self.end = (self.count + 1 if end == self.end else 1), end


def _about(said: Any) -> dict[str, Any]:
    """Returns the entries that the judge uses. By default, the command covers everything."""
    said = said if isinstance(said, dict) else {}
    release = {"suite": pinned(said["suite"])} if "suite" in said else {}
    for name, kind, words in (("config", dict, "an object"), ("dtypes", list, "a list"), ("components", list, "a list")):
        if not isinstance(said.get(name, kind()), kind):
            raise ValueError(f"{name} of --describe must be {words}; got {said[name]!r}")
    return release | {
        "modes": ("eager",),
        "config": said.get("config", {}),
        "limits": limits_of(said),
        "dtypes": known("dtype", said.get("dtypes", DTYPES), DTYPES),
        "components": known("component", said.get("components", [*OWN]), COMPONENTS),
    }


def _arguments(line: str) -> list[str]:
    """Splits the command line. Raises ValueError if it does not start with an executable."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ValueError(f"the command {line!r} cannot be split into words as a shell does: {error}") from None
    if not words:
        raise ValueError("the command is empty")
    if shutil.which(words[0]) is None:
        is_file = os.path.isfile(words[0])
        raise ValueError(f"{words[0]} is not executable: chmod +x {words[0]}" if is_file else f"the command {words[0]} does not exist")
    return words


def _paths(case: Case) -> list[str]:
    """Returns the paths of a case's outputs; two if it is evaluated twice."""
    path = answer_path(case)
    return [path, f"again/{path}"] if case.twice else [path]


def batches(cases: Iterable[Case], most: int = BATCH_BYTES) -> Iterator[list[Case]]:
    """Yields batches of one checkpoint, with distinct paths, of about `most` bytes at most."""
    batch: list[Case] = []
    paths: set[str] = set()
    size = 0
    for case in cases:
        other = batch and _folder(case) != _folder(batch[0])
        if batch and (other or size + case.size > most or paths & {*_paths(case)}):
            yield batch
            batch, paths, size = [], set(), 0
        batch.append(case)
        paths |= {*_paths(case)}
        size += case.size
    if batch:
        yield batch


def _end(program: Program, outputs: Sequence[Path], limit: float) -> Answer | None:
    """Waits for the process to end. Returns how it failed, or None."""
    if _hangs(program, outputs, limit):
        return Kind.HANG, f"no answer within {limit:g} s"
    return (Kind.CRASH, f"the command ended with {program.end}") if program.code else None


def _named(text: str, names: Mapping[str, str]) -> str:
    """Replaces paths, which differ in each call, with names."""
    for path, name in names.items():
        text = text.replace(path, name)
    return text


def _folder(case: Case) -> str:
    """Returns the checkpoint of a whole model in the case's dtype; "" for a component's case."""
    return os.path.join(case.folder, case.dtype) if case.folder else ""


def _hangs(program: Program, outputs: Sequence[Path], limit: float) -> bool:
    """Waits for the process to end. Returns True if no new output appears for `limit` seconds."""
    written, since = 0, time.monotonic()
    while time.monotonic() - since <= limit:
        with contextlib.suppress(TimeoutError):
            program.wait(time.monotonic() + POLL)
            return False
        now = sum(path.exists() or path.with_suffix(".json").exists() for path in outputs)
        if now > written:
            written, since = now, time.monotonic()
    return True


def _unanswered(cases: dict[str, Case], answers: Mapping[str, Answer]) -> dict[str, Case]:
    """Returns the cases without an answer, first those after the last answered case."""
    paths = list(cases)
    reached = max((paths.index(path) + 1 for path in answers), default=0)
    return {path: cases[path] for path in paths[reached:] + paths[:reached] if path not in answers}


def _collect(outputs: Path, cases: Mapping[str, Case], died: bool) -> dict[str, Answer]:
    """Returns the outputs that exist. If the command died, an unreadable last file is ignored."""
    found: dict[str, Answer] = {}
    torn = ""
    for path, case in cases.items():
        try:
            answer = read_answer(outputs / path, answer_limit(case.size))
        except (ValueError, OSError) as error:
            answer, torn = (Kind.ERROR, printable(str(error).replace(f"{outputs}{os.sep}", ""))), path
        else:
            torn = torn if answer is None else ""
        if answer is not None:
            found[path] = answer
    if died:
        found.pop(torn, None)
    return found


def _one(case: Case, answers: list[Answer]) -> Answer:
    """Merges a case's one or two evaluations: the first failure, or equal outputs."""
    for answer in answers:
        if answer[0] != Kind.OUTPUTS:
            return answer
    (_, first), (_, last) = answers[0], answers[-1]
    return (Kind.OUTPUTS, statistics.measured(case.component, case.inputs, first)) if equal(first, last) else (Kind.ERROR, UNEQUAL)
