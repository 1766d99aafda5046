"""The guide's mistakes, made: a copy of a port with the edits of one in it, run in this process.

python tools/mistakes.py NRM1 torch      # or without arguments: all; says which are not what the catalogue says
"""

import contextlib
import functools
import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rosettaformer.conformance.case import Case
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.catalogue import Defect, all_defects
from rosettaformer.conformance.catalogue.alteration import Alteration
from rosettaformer.conformance.catalogue.mistakes import FRAMEWORKS, Mistake, all_mistakes, edited
from rosettaformer.conformance.compare import compare
from rosettaformer.conformance.diagnosis import altered
from rosettaformer.conformance.ports.port import NotCovered, Unsupported
from rosettaformer.conformance.reference import statistics, tolerance
from rosettaformer.conformance.reference.components import OWN, named_outputs, without_other_layouts

ROOT = Path(__file__).resolve().parents[1]
PACKS_ALL = ", least=0"  # the argument in a port.py by which the smallest batch is unpadded
# the end of the port.py of PyTorch's copy with a mistake in unpadding: its eager model leaves out padding, too
UNPADDED = """

from .programs import unpadding


def run(model, **inputs):
    return unpadding.unpadded(model, least=0)(**inputs)


components["transformer"] = lambda config, dtype: partial(run, Transformer(config))
"""


@functools.cache
def cases() -> list[Case]:
    """Those of the components that our ports have."""
    return without_other_layouts(all_cases(grad=True), OWN)


@contextlib.contextmanager
def copied(mistake: Mistake, framework: str) -> Iterator[str]:
    """The name of an importable copy of our port's package with the edits in it."""
    package = ROOT / f"impl_{framework}"
    with tempfile.TemporaryDirectory() as folder:
        name = f"mistaken_{Path(folder).name}"
        shutil.copytree(package, Path(folder) / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file, text in edited(mistake.edits, package).items():
            (Path(folder) / name / file).write_text(text, encoding="utf-8")
        port = Path(folder) / name / "port.py"
        text = port.read_text(encoding="utf-8")
        port.write_text(text + UNPADDED if mistake.packs else text.replace(PACKS_ALL, ""), encoding="utf-8")
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            yield name
        finally:
            sys.path.remove(folder)
            for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
                del sys.modules[loaded]


@contextlib.contextmanager
def registered_anew(framework: str) -> Iterator[None]:
    """Keras knows layers by name, for the whole process: the copy's take the place of ours until the block ends."""
    if framework != "tf":
        yield
        return
    from keras.saving import get_custom_objects

    importlib.import_module("impl_tf.port")
    ours = dict(get_custom_objects())
    try:
        yield
    finally:
        get_custom_objects().clear()
        get_custom_objects().update(ours)


@contextlib.contextmanager
def port_with(mistake: Mistake, framework: str) -> Iterator[Any]:
    """The adapter of our port of the framework, with the edits in it."""
    with copied(mistake, framework) as name, registered_anew(framework):
        adapter = importlib.import_module(f"rosettaformer.conformance.ports.adapters.{framework}").Adapter
        made = type("Adapter", (adapter,), {"own": importlib.import_module(f"{name}.weights")})
        yield made(importlib.import_module(f"{name}.port"))


def complaint(defect: Defect, mistake: Mistake, framework: str, most: int | None = None) -> str:
    """What the edited port gives that the catalogue does not say; empty where it is the reference with the defect in it.

    It must be refused by a case that catches the defect, and equal the altered reference on every case, or fail where that fails; of a
    defect that rounds or draws at random, and of a mistake that differs, the first alone can be asked; of one that no output reveals,
    that it answers.
    most: so many cases are run, the core ones and the smallest of them first.
    """
    chosen = next(one for one in defect.hypotheses if one.variant == mistake.variant)
    with port_with(mistake, framework) as port:
        return refused(defect, chosen, port.run, bool(mistake.differs), most)


def refused(defect: Defect, chosen: Alteration, run: Callable[[Case], Any], differs: bool, most: int | None) -> str:
    """What a port, which answers cases by `run`, gives that the defect does not say: see `complaint`."""
    claiming = sorted((case for case in cases() if defect.id in case.catches), key=lambda case: (not case.core, case.size))
    asked = [case.at(dtype, mode="eager") for case in claiming for dtype in defect.dtypes][:most]
    exact = not (chosen.rounding or chosen.random or differs)
    refusals, answered = 0, 0
    for case in asked:
        try:
            outputs = statistics.measured(case.component, case.inputs, named_outputs(run(case)))
        except (NotCovered, Unsupported):
            continue
        except Exception as error:
            if exact and altered.answer((chosen,), case) is not None:
                return f"{case.id} {case.dtype}: {type(error).__name__}: {error}"
            refusals += 1
            continue
        answered += 1
        clean = tolerance.expect(case)
        refusals += clean.keys() != outputs.keys() or any(compare(clean[name], outputs[name]).excess > 1 for name in clean)
        if exact and not altered.equal(altered.expected((chosen,), case, outputs), outputs):
            return f"{case.id} {case.dtype}: is not the reference with {defect.name} in it"
    if not (answered or refusals):
        return "no case was answered" if asked else ""
    return "" if refusals or defect.unobservable else "no case refuses it"


def main() -> None:
    frameworks = [name for name in sys.argv[1:] if name in FRAMEWORKS]
    identities = [name for name in sys.argv[1:] if name not in frameworks]
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
