"""Selects the cases: the suite's, or those of a model, exported files or meshes."""

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from reference_numpy.sharding import Mesh
from reference_numpy.suggestions import known

from ..common.backends import PORTS
from ..common.extras import require
from ..common.reading import read_object
from ..files import checkpoints
from ..files.artefacts import meanings
from ..files.artefacts.kinds import KINDS, SUFFIXES, Kind, kind_of
from ..files.artefacts.settings import Settings, told
from .case import DTYPES, Case
from .expectation.components import ASKED, forward_of
from .ports.command import PREFIX
from .suite import all_cases, of_components
from .suite.artefact import artefact_cases
from .suite.checkpoint import checkpoint_cases
from .suite.expression import choose
from .suite.fitting import GIGA, fitting
from .suite.gradients import gradients
from .suite.meshes import mesh_cases

OF_ARTEFACTS = ("tensors", "function", "allow_code", "expect")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The selected cases: by default the suite without gradients.

    components, dtypes: only these; by default all, except that a whole model runs in float32 and
    its checkpoint's dtype. expression: names of cases joined by and, or, not, as in pytest. grad:
    also gradients. full: every case and its gradients, in every dtype. like: the whole model, a
    family (with random weights from seed) or a folder. memory: memory for the cases of a model, in
    GB. checkpoint: weights of the whole model. ignore: heads, tensors and config entries of the
    checkpoint to leave out. meshes: the meshes to run on. For exported files: tensors: NAME=MEANING
    pairs. function: the function of the model. allow_code: whether compiled code may be loaded.
    expect: a lower precision to tolerate.
    """

    components: Sequence[str] = ()
    expression: str | None = None
    dtypes: Sequence[str] = ()
    grad: bool = False
    full: bool = False
    like: str = ""
    seed: int = 0
    memory: float | None = None
    checkpoint: Path | None = None
    ignore: Sequence[str] = ()
    meshes: Sequence[Mesh] = ()
    tensors: Sequence[str] = ()
    function: str = ""
    allow_code: bool = False
    expect: str = ""

    def __post_init__(self) -> None:
        require_lists(components=self.components, dtypes=self.dtypes)
        known("component", self.components, ASKED)
        known("dtype", self.dtypes, DTYPES)

    @property
    def quick(self) -> bool:
        """Whether no option selects cases, so that this project's ports run the core cases."""
        return self.expression is None and not (self.components or self.full or self.checkpoint or self.like)


def require_lists(**given: Sequence[str]) -> None:
    """Raises ValueError if an argument is a string instead of a list of strings."""
    if name := next((name for name, value in given.items() if isinstance(value, str)), ""):
        raise ValueError(f"{name} must be a list, such as [{given[name]!r}]; got {given[name]!r}")


NAMES = tuple(field.name for field in fields(Selection))


@contextlib.contextmanager
def cases_for(ports: Sequence[str], selection: Selection) -> Iterator[list[Case]]:
    """Yields the selected cases for these ports.

    Inside the block the folders of a whole model exist, and new processes get the settings of
    exported files. Raises ValueError on contradictory options, on an unreadable model, and if an
    exported file comes together with other ports or without its checkpoint; MissingBackend if its
    runtime is not installed.
    """
    one = selection
    with contextlib.ExitStack() as stack:
        if artefacts := artefacts_in(ports):
            found, grad = _of_artefacts(artefacts, one, stack), False
        else:
            refuse_without_artefacts(**{name: getattr(one, name) for name in OF_ARTEFACTS})
            found, grad = _found(one, len(ports) or len(PORTS), stack)
        cases = of_components(found, one.components, grad)
        yield cases if one.expression is None else choose(cases, one.expression)


def _found(one: Selection, ports: int, stack: contextlib.ExitStack) -> tuple[list[Case], bool]:
    """Returns the cases before components are selected, and whether gradients are among them."""
    memory = one.memory and one.memory * GIGA
    if one.checkpoint and one.meshes:
        raise ValueError("--mesh cannot be combined with --checkpoint: it has its own cases")
    if one.like and one.checkpoint:
        raise ValueError("--checkpoint and --like cannot be combined: each selects the weights")
    if one.ignore and not one.checkpoint:
        raise ValueError(f"--ignore {one.ignore[0]} needs --checkpoint")
    if one.like:
        from .suite.like_folders import cases_of  # imports every family

        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="rosettaformer-like-"))
        return cases_of(one.like, Path(root), one.dtypes or DTYPES * one.full, one.seed, one.meshes, memory), True
    if one.meshes:
        return mesh_cases(one.meshes), True
    if not one.checkpoint:
        return all_cases(grad=True), one.grad or one.full
    found = checkpoint_cases(one.checkpoint, one.ignore, one.dtypes or DTYPES * one.full)
    if one.grad or one.full or any(map(forward_of, one.components)):
        found += gradients(found)  # each runs the model once
    return fitting(found, memory, sent=ports), one.grad or one.full


def _of_artefacts(artefacts: Sequence[str], one: Selection, stack: contextlib.ExitStack) -> list[Case]:
    """Returns the cases of the checkpoint that exported files were made from."""
    if one.checkpoint is None:
        wanted = "name the weights it was made from with --checkpoint, a canonical file or a Hugging Face checkpoint"
        raise ValueError(f"{artefacts[0]} is {_kind(artefacts[0]).title} with its own weights; {wanted}")
    form = checkpoints.own_format(one.checkpoint)
    found = checkpoints.view(one.checkpoint, form, ignore=tuple(one.ignore))
    settings = Settings(
        found.config.to_dict(),
        read_object(file) if (file := one.checkpoint / "config.json").is_file() else {},
        meanings.parse(one.tensors),
        one.function,
        one.allow_code,
        one.expect,
        str(one.checkpoint),
        tuple(one.ignore),
    )
    stack.enter_context(told(settings))
    return fitting(artefact_cases(one.checkpoint, found), one.memory and one.memory * GIGA)


def artefacts_in(ports: Iterable[str]) -> list[str]:
    """Returns the ports that are exported files.

    Raises ValueError if other ports come with them or a file does not exist; MissingBackend if a
    runtime is not installed.
    """
    ports = list(ports)
    files = [port for port in ports if not port.startswith(PREFIX)]  # a command line may end like a file name
    found = [port for port in files if kind_of(Path(port)) or Path(port).suffix in SUFFIXES]
    if absent := [port for port in found if not Path(port).exists()]:
        raise ValueError(f"{absent[0]} does not exist")
    if found and len(found) < len(ports):
        other = next(port for port in ports if port not in found)
        raise ValueError(f"{other} is not an exported file; check it separately: exported files have their own cases")
    for port in found:
        require(_kind(port).title, {_kind(port).extra: _kind(port).needs})
    return found


def _kind(artefact: str) -> Kind:
    return KINDS[kind_of(Path(artefact)) or SUFFIXES[Path(artefact).suffix]]


def refuse_without_artefacts(**options: object) -> None:
    """Raises ValueError if an option is set that applies only to exported files."""
    if given := [name for name, value in options.items() if value]:
        raise ValueError(f"--{given[0].removesuffix('s').replace('_', '-')} applies only to exported files; no port is one")
