"""Which cases ports are judged on: the suite's, those of a whole model, of a checkpoint, of exported files, or of meshes."""

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
    """Which cases are chosen: by default those of the suite, without gradients.

    components, dtypes: only these; by default all, but of a whole model float32 and its checkpoint's dtype. expression: names of cases
    joined by and, or, not, as in pytest. grad: gradients too. full: every case and its gradients, in every dtype. like: the whole model, a
    family (with random weights from seed) or a folder. memory: for the cases of a model, in GB. checkpoint: weights of the whole model,
    without the heads, tensors and entries ignore. meshes: devices to judge on. Of exported files: tensors: NAME=MEANING; function: that of
    the model; allow_code: whether compiled code may be opened; expect: their lower precision.
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
        """Whether nothing says which cases are run, so that our own ports are asked the core cases of every component."""
        return self.expression is None and not (self.components or self.full or self.checkpoint or self.like)


def require_lists(**given: Sequence[str]) -> None:
    """Raises ValueError if a text stands where a list of texts must, whose letters would be taken for its words."""
    if name := next((name for name, value in given.items() if isinstance(value, str)), ""):
        raise ValueError(f"{name} must be a list, such as [{given[name]!r}]; got {given[name]!r}")


NAMES = tuple(field.name for field in fields(Selection))


@contextlib.contextmanager
def cases_for(ports: Sequence[str], selection: Selection) -> Iterator[list[Case]]:
    """The cases that are chosen for these ports. Within the block the folders of a whole model exist, and processes that are started know
    what they need of exported files.

    Raises ValueError on choices that contradict each other, on a model that cannot be read, and if an exported file is given beside other
    ports or without its checkpoint; MissingBackend if what runs it is not installed.
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
    """Returns the cases among which components are chosen, and whether their gradients belong to them."""
    memory = one.memory and one.memory * GIGA
    if one.checkpoint and one.meshes:
        raise ValueError("--mesh has cases of its own; it takes no --checkpoint")
    if one.like and one.checkpoint:
        raise ValueError("--checkpoint and --like each say on which weights a port is judged; give one")
    if one.ignore and not one.checkpoint:
        raise ValueError(f"--ignore {one.ignore[0]} is of a --checkpoint; got none")
    if one.like:
        from .suite.like_folders import cases_of  # which imports every family

        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="rosettaformer-like-"))
        return cases_of(one.like, Path(root), one.dtypes or DTYPES * one.full, one.seed, one.meshes, memory), True
    if one.meshes:
        return mesh_cases(one.meshes), True
    if not one.checkpoint:
        return all_cases(grad=True), one.grad or one.full
    found = checkpoint_cases(one.checkpoint, one.ignore, one.dtypes or DTYPES * one.full)
    if one.grad or one.full or any(map(forward_of, one.components)):
        found += gradients(found)  # which run the model once for each
    return fitting(found, memory, sent=ports), one.grad or one.full


def _of_artefacts(artefacts: Sequence[str], one: Selection, stack: contextlib.ExitStack) -> list[Case]:
    """Returns the cases of the checkpoint that exported files were made of."""
    if one.checkpoint is None:
        wanted = "--checkpoint says which they are, a canonical file or a Hugging Face folder"
        raise ValueError(f"{artefacts[0]} is {_kind(artefacts[0]).title}, with weights of its own: {wanted}")
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
    """Returns the ports that are exported files. Raises ValueError if there are others too, and if a file does not exist;
    MissingBackend if what runs one is not installed.
    """
    ports = list(ports)
    files = [port for port in ports if not port.startswith(PREFIX)]  # a command's line may end like a file
    found = [port for port in files if kind_of(Path(port)) or Path(port).suffix in SUFFIXES]
    if absent := [port for port in found if not Path(port).exists()]:
        raise ValueError(f"there is no file {absent[0]}")
    if found and len(found) < len(ports):
        other = next(port for port in ports if port not in found)
        raise ValueError(f"artefacts are judged on cases of their own; {other} is no artefact, and is checked by itself")
    for port in found:
        require(_kind(port).title, {_kind(port).extra: _kind(port).needs})
    return found


def _kind(artefact: str) -> Kind:
    return KINDS[kind_of(Path(artefact)) or SUFFIXES[Path(artefact).suffix]]


def refuse_without_artefacts(**options: object) -> None:
    """Raises ValueError if an option is given that means something for artefacts alone."""
    if given := [name for name, value in options.items() if value]:
        raise ValueError(f"--{given[0].removesuffix('s').replace('_', '-')} is of artefacts; no port is one")
