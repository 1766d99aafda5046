"""The guide's mistakes, made: a copy of a port with the edits of one in it, run in this process.

python tests/mistakes.py NRM1 torch      # or without arguments: all; says which are not what the catalogue says
"""

import contextlib
import importlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.compare import compare
from rosettaformer.conformance.defects import Defect, all_defects
from rosettaformer.conformance.diagnosis import altered
from rosettaformer.conformance.ports.port import NotCovered, Unsupported
from rosettaformer.conformance.reference import tolerance
from rosettaformer.conformance.reference.components import named_outputs
from rosettaformer.guide.mistakes import FRAMEWORKS, Mistake, all_mistakes, edited

ROOT = Path(__file__).resolve().parents[1]
MODES = {"torch": "eager", "tf": "eager", "jax": "eager"}


@contextlib.contextmanager
def port_with(mistake: Mistake, framework: str) -> Iterator[Any]:
    """The adapter of our port of the framework, with the edits in it."""
    package = ROOT / f"impl_{framework}"
    with tempfile.TemporaryDirectory() as folder:
        name = f"mistaken_{Path(folder).name}"
        shutil.copytree(package, Path(folder) / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file, text in edited(mistake.edits, package).items():
            (Path(folder) / name / file).write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            adapter = importlib.import_module(f"rosettaformer.conformance.ports.adapters.{framework}").Adapter
            made = type("Adapter", (adapter,), {"own": importlib.import_module(f"{name}.weights")})
            yield made(importlib.import_module(f"{name}.port"))
        finally:
            sys.path.remove(folder)
            for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
                del sys.modules[loaded]


def complaint(defect: Defect, mistake: Mistake, framework: str) -> str:
    """What the edited port gives that the catalogue does not say; empty where it is the reference with the defect in it.

    It must be refused by a case that catches the defect, and equal the altered reference on all that it answers; of a defect that rounds
    or draws at random, and of a mistake that differs, the first alone can be asked; of one that no output reveals, that it answers.
    """
    chosen = next(one for one in defect.hypotheses if one.variant == mistake.variant)
    cases = [case.at(dtype, mode=MODES[framework]) for case in all_cases(grad=True) if defect.id in case.catches for dtype in defect.dtypes]
    exact = not (chosen.rounding or chosen.random or mistake.differs)
    refused, answered = 0, 0
    with port_with(mistake, framework) as port:
        for case in cases:
            try:
                outputs = named_outputs(port.run(case))
            except (NotCovered, Unsupported):
                continue
            except Exception as error:
                if exact:
                    return f"{case.id} {case.dtype}: {type(error).__name__}: {error}"
                refused += 1
                continue
            answered += 1
            clean = tolerance.expect(case)
            wrong = clean.keys() != outputs.keys() or any(compare(clean[name], outputs[name]).excess > 1 for name in clean)
            refused += wrong
            if exact and not altered.equal(altered.expected((chosen,), case, outputs), outputs):
                return f"{case.id} {case.dtype}: is not the reference with {defect.name} in it"
    if not (answered or refused):
        return "no case was answered" if cases else ""
    return "" if refused or defect.unobservable else "no case refuses it"


def main() -> None:
    identities, frameworks = (
        [name for name in sys.argv[1:] if name not in FRAMEWORKS],
        [name for name in sys.argv[1:] if name in FRAMEWORKS],
    )
    defects, wrong = all_defects(), 0
    for identity, mistakes in all_mistakes().items():
        for framework, mistake in mistakes.items():
            if (identities and identity not in identities) or (frameworks and framework not in frameworks) or mistake.absent:
                continue
            try:
                said = complaint(defects[identity], mistake, framework)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            wrong += bool(said)
            print(identity, framework, said or "ok", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
