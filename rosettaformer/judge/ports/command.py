"""A port that is a command, in another environment or language: it reads case files and writes its outputs (docs/command-port.md)."""

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
BATCH_BYTES = 1 << 28  # the cases of one call of the command take about this much disk at most
MOST_SAID = 1 << 20  # bytes of what a command says about itself
SAME = 2  # calls for one folder that end in the same way before an answer; after one more, for another folder, there are no others
POLL = 0.05  # seconds between two looks at what the command has written


class Command(Worker):
    """A worker that asks a command for many cases at a time.

    name: `command:` and the command line, which is split as a shell splits it but not run by a shell.
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
        """Returns what the command says about itself with `--describe`; a command need not know the option."""
        with self._running("--describe", talks=True) as program:
            try:
                deadline = time.monotonic() + limit
                text = program.output(MOST_SAID, deadline)
                program.wait(deadline)
                return parse_json(text) if program.code == 0 else None
            except (TimeoutError, ValueError):
                return None

    def call(self, method: str, *arguments: Any, limit: float = 120.0) -> Answer:
        """Answers a case, the only method that a command has; any other is not covered."""
        return next(self.answers(arguments, limit)) if method == "answer" else (Kind.NOT_COVERED, "a command shows nothing of its inside")

    def answers(self, cases: Iterable[Case], limit: float) -> Iterator[Answer]:
        """Yields the answers to many cases, in their order. limit: seconds in which another answer must appear."""
        lost = _Lost()
        for batch in batches(cases):
            yield from self._batch(batch, limit, lost)

    def _batch(self, batch: list[Case], limit: float, lost: "_Lost") -> Iterator[Answer]:
        """Yields the answers of one call; if it ends badly, one case is to blame, and the others without an answer are run again."""
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
        silence: Answer = (Kind.SKIPPED, f"the command had ended {deaths} times") if end else (Kind.NOT_COVERED, prompts.SILENCE)
        silence = (Kind.SKIPPED, UNSTARTED) if lost.count >= SAME else silence
        for case in batch:
            yield _one(case, [answers.get(path, silence) for path in _paths(case)])

    def _run(self, cases: dict[str, Case], limit: float) -> tuple[dict[str, Answer], Answer | None]:
        """Returns the answers of one call, by path; and how it ended, if it ended badly."""
        folder = _folder(next(iter(cases.values())))
        return self._read(folder, cases, limit) if folder else self._compute(cases, limit)

    def _read(self, model: str, cases: dict[str, Case], limit: float) -> tuple[dict[str, Answer], Answer | None]:
        """Returns the logits that the command writes for prompts, given the folder of the model."""
        asked = {path: case for path, case in cases.items() if prompts.is_prompt(case)}
        answers: dict[str, Answer] = dict.fromkeys(cases.keys() - asked, (Kind.NOT_COVERED, "a command gives logits alone"))
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
        """Returns the outputs that the command writes for cases, whose files hold their parameters."""
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
        """Runs the command, and leaves nothing of it behind."""
        program = Program([*self._arguments, *arguments], self._environment, talks, stopped=self._stopped)
        try:
            yield program
        finally:
            self.left += program.close()

    def close(self) -> None:
        """Does nothing: between two calls nothing of a command is left."""


@dataclass
class _Lost:
    """How calls for whole models ended, one after another in the same way, that gave no answer; and how many there were."""

    end: Answer | None = None
    count: int = 0

    def hear(self, end: Answer | None, answers: Mapping[str, Answer], cases: Mapping[str, Case]) -> None:
        """Counts a call that ended so and gave these answers to the cases."""
        whole = any(case.folder for case in cases.values())
        if not (whole and end) or any(prompts.is_prompt(cases[path]) for path in answers):
            self.count = 0
        else:
            self.count, self.end = (self.count + 1 if end == self.end else 1), end


def _about(said: Any) -> dict[str, Any]:
    """Returns what the judge goes by; a command that does not say so fixes no config and may cover every component."""
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
    """Returns the words of the command line. Raises ValueError if they name nothing that can be run."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ValueError(f"a command must be words as a shell takes them; got {line!r} ({error})") from None
    if not words:
        raise ValueError("a command must name what is to be run; got nothing")
    if shutil.which(words[0]) is None:
        why = "is not executable (chmod +x makes it so)" if os.path.isfile(words[0]) else "does not exist"
        raise ValueError(f"a command must begin with what can be run; {words[0]} {why}")
    return words


def _paths(case: Case) -> list[str]:
    """Returns where the outputs of a case are expected: in two places if it must be evaluated twice."""
    path = answer_path(case)
    return [path, f"again/{path}"] if case.twice else [path]


def batches(cases: Iterable[Case], most: int = BATCH_BYTES) -> Iterator[list[Case]]:
    """Yields cases in batches whose files take at most about that many bytes of disk, whose paths all differ, and of one folder."""
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
    """Waits until the process ends; returns how, if it ends badly."""
    if _hangs(program, outputs, limit):
        return Kind.HANG, f"no answer within {limit:g} s"
    return (Kind.CRASH, f"the command ended with {program.end}") if program.code else None


def _named(text: str, names: Mapping[str, str]) -> str:
    """Returns the text with names in the place of paths, which are others in each call."""
    for path, name in names.items():
        text = text.replace(path, name)
    return text


def _folder(case: Case) -> str:
    """Returns the folder of a whole model in the case's dtype; empty for a case of a component."""
    return os.path.join(case.folder, case.dtype) if case.folder else ""


def _hangs(program: Program, outputs: Sequence[Path], limit: float) -> bool:
    """Waits until the process ends, or until no new output has appeared for `limit` seconds; whether the latter happened."""
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
    """Returns the cases without an answer: first those after the last answered one, where the command was when it ended."""
    paths = list(cases)
    reached = max((paths.index(path) + 1 for path in answers), default=0)
    return {path: cases[path] for path in paths[reached:] + paths[:reached] if path not in answers}


def _collect(outputs: Path, cases: Mapping[str, Case], died: bool) -> dict[str, Answer]:
    """Returns the answers that exist; if the command died, a last one that cannot be read was being written then, and is not an answer."""
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
    """Returns the answer to a case that was evaluated once or twice: the first without outputs, otherwise the equal outputs."""
    for answer in answers:
        if answer[0] != Kind.OUTPUTS:
            return answer
    (_, first), (_, last) = answers[0], answers[-1]
    return (Kind.OUTPUTS, statistics.measured(case.component, case.inputs, first)) if equal(first, last) else (Kind.ERROR, UNEQUAL)
