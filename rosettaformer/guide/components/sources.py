"""The source of a component in each package, as blocks (a function, a class, a method) of pieces (a statement with its comments)."""

import ast
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...conformance.reference.components import OWN, VJP
from .modules import Definition, Symbol, components_by_symbol, main_of, read

__all__ = ["Block", "Piece", "Source", "source"]

WITHIN = ("inputs", "beams")  # files without a component of their own: what they define is shown where it is used
LONG = 4  # a statement of so many lines is shown part by part
_Lines = tuple[int, int]  # the first and the last, counted from 1


@dataclass(frozen=True)
class Piece:
    """A statement with its comments, or what stands before the statements within it: signature, condition, loop.

    first, last: its lines in the file. node: the statement; opens: whether it is what stands before others.
    """

    symbol: Symbol
    first: int
    last: int
    node: ast.stmt
    opens: bool

    @property
    def lines(self) -> tuple[str, ...]:
        """Its lines as they stand in the file."""
        return read(self.symbol.package, self.symbol.module).lines[self.first - 1 : self.last]

    @property
    def text(self) -> str:
        """Its lines without blank ones before them."""
        return "\n".join(self.lines).lstrip("\n")

    @property
    def parts(self) -> Iterator[ast.AST]:
        """What it holds of the syntax tree."""
        if not self.opens:
            yield self.node
            return
        for field, value in ast.iter_fields(self.node):
            if field not in ("body", "orelse", "handlers", "finalbody"):
                yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, ast.AST))


@dataclass(frozen=True)
class Block:
    """A definition that is shown: all of it but its docstring, where it is the component's own, and methods that are components."""

    symbol: Symbol
    pieces: tuple[Piece, ...]

    @property
    def lines(self) -> _Lines:
        """The first and last line of the definition, decorators among them."""
        return _span(read(self.symbol.package, self.symbol.module).definitions[self.symbol.name])


@dataclass(frozen=True)
class Source:
    """What a package has of a component.

    bases: what its class inherits from in the file. main: its own definitions. helpers: those that only it needs, in the order of the
    file. calls: other components that it uses. fast: definitions of the folder `fast` that it calls. docstring: of the component.
    """

    package: str
    bases: tuple[Block, ...]
    main: tuple[Block, ...]
    helpers: tuple[Block, ...]
    calls: tuple[str, ...]
    fast: tuple[Symbol, ...]
    docstring: str

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (*self.bases, *self.main, *self.helpers)


@functools.cache
def source(component: str, package: str) -> Source:
    """The source of a component in a package; of a gradient what the component itself does not show."""
    known = components_by_symbol(package)
    main = main_of(component, package)
    shown = set(main)
    if component.endswith(VJP):
        shown |= {block.symbol for block in source(component.removesuffix(VJP), package).blocks}
    bases = [base for symbol in main for base in _bases(symbol, known)]
    shown |= {*bases}
    helpers: list[Symbol] = []
    calls: dict[str, None] = {}
    fast: dict[Symbol, None] = {}
    queue = [*main, *bases]
    while queue:
        symbol = queue.pop(0)
        for other in _references(symbol, main, known):
            if other in known and other not in main:
                calls[known[other]] = None
            elif other.module.startswith(("fast.", "kernels.", "programs.")):
                fast[other] = None
            elif not shown & {other, _owner(other)} and _belongs(other, symbol, known):
                shown.add(other)
                helpers.append(other)
                queue.append(other)
    ordered = sorted(helpers, key=lambda symbol: (symbol.module != main[0].module, symbol.module, _node(symbol).lineno))
    calls.pop(component, None)
    before, own, after = (tuple(_block(symbol, symbols is main, known) for symbol in symbols) for symbols in (bases, main, ordered))
    return Source(package, before, own, after, tuple(calls), tuple(fast), ast.get_docstring(_node(main[0])) or "")


def _references(symbol: Symbol, main: Sequence[Symbol], known: Iterable[Symbol]) -> Iterator[Symbol]:
    file, node = read(symbol.package, symbol.module), _node(symbol)
    owner = symbol.name.rpartition(".")[0] or (symbol.name if isinstance(node, ast.ClassDef) else "")
    for part in [part for part in _statements(symbol, node, known) if not _is_docstring(part)] + node.decorator_list:
        for other in file.references(part, owner):
            if other.name != symbol.name and not (owner and isinstance(node, ast.ClassDef) and other.name.startswith(f"{symbol.name}.")):
                yield other
    for base in node.bases if isinstance(node, ast.ClassDef) else ():
        yield from (other for other in file.references(base) if other in known)
    if symbol.package == "reference_numpy":
        yield from (other for other in _methods_of_ports(symbol, main) if other not in known)
    elif "." in symbol.name and symbol in main and Symbol(*symbol[:2], owner) not in known:
        yield from (Symbol(*symbol[:2], name) for name in [f"{owner}.__init__"] if name in file.definitions)
    for name, other_node in file.definitions.items():
        if any(symbol in file.references(part) for part in other_node.decorator_list):
            yield Symbol(*symbol[:2], name)


def _bases(symbol: Symbol, known: Iterable[Symbol]) -> list[Symbol]:
    """The classes of its file that a class inherits from and that are no components."""
    file = read(symbol.package, symbol.module)
    names = file.bases(symbol.name) if isinstance(_node(symbol), ast.ClassDef) else ()
    return [base for base in (Symbol(*symbol[:2], name) for name in names) if base not in known]


def _owner(symbol: Symbol) -> Symbol:
    """The class of a method."""
    return Symbol(*symbol[:2], symbol.name.rpartition(".")[0])


def _methods_of_ports(symbol: Symbol, main: Sequence[Symbol]) -> Iterator[Symbol]:
    """Functions of the reference that are methods of the class that a port has for the component, under the same name."""
    if symbol != main[0] or symbol.name not in OWN or symbol.name.endswith(VJP):
        return
    port = main_of(symbol.name, "impl_torch")[0]
    if isinstance(_node(port), ast.ClassDef):
        names = {name.rpartition(".")[2] for name in read(port.package, port.module).definitions if name.startswith(f"{port.name}.")}
        yield from (Symbol(*symbol[:2], name) for name in read(*symbol[:2]).definitions if name in names)


def _belongs(other: Symbol, symbol: Symbol, known: Iterable[Symbol]) -> bool:
    """Whether what a definition refers to is shown with it: what its file has beside the components."""
    if _owner(other) in known and "." in symbol.name:
        return False  # a method that is a component shows no others of a class that is one
    return other.module in (symbol.module, *WITHIN)


def _block(symbol: Symbol, own: bool, known: Iterable[Symbol]) -> Block:
    return Block(symbol, tuple(Piece(symbol, *part) for part in _split(symbol, _node(symbol), own, known)))


def _split(symbol: Symbol, node: ast.stmt, own: bool, known: Iterable[Symbol]) -> Iterator[tuple[int, int, ast.stmt, bool]]:
    """The pieces of a statement: first and last line, node, and whether others stand within it."""
    first = _span(node)[0]
    body = [part for _, value in ast.iter_fields(node) if isinstance(value, list) for part in value]
    parts = [part for part in body if isinstance(part, ast.stmt | ast.ExceptHandler | ast.match_case)]
    within = [inner for part in parts for inner in ([part] if isinstance(part, ast.stmt) else part.body)]
    short = _end(node) - node.lineno + 1 < LONG and not (isinstance(node, Definition) and within and _is_own(symbol, node))
    if not within or within[0].lineno == node.lineno or short:
        yield first, _end(node), node, False
        return
    end = _span(within[0])[0] - 1
    if isinstance(node, Definition) and _is_docstring(within[0]):
        yield first, end if own else _end(within[0]), node, True
        end = _end(within.pop(0))
    else:
        yield first, end, node, True
    for part in within:
        if isinstance(part, Definition) and isinstance(node, ast.ClassDef) and _is_other(symbol, part, known):
            end = _end(part)
            continue
        pieces = list(_split(symbol, part, False, known))
        yield (end + 1, *pieces[0][1:])
        yield from pieces[1:]
        end = _end(part)


def _is_own(symbol: Symbol, node: Definition) -> bool:
    """Whether a definition is the one that is shown or a method of it, and not a function within a function."""
    shown = _node(symbol)
    return node is shown or (isinstance(shown, ast.ClassDef) and node in shown.body)


def _statements(symbol: Symbol, node: Definition, known: Iterable[Symbol]) -> Iterator[ast.stmt]:
    yield from (part for part in node.body if not (isinstance(part, Definition) and _is_other(symbol, part, known)))


def _is_other(symbol: Symbol, part: Definition, known: Iterable[Symbol]) -> bool:
    """Whether a method of a class is a component itself."""
    return Symbol(*symbol[:2], f"{symbol.name}.{part.name}") in known


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _node(symbol: Symbol) -> Definition:
    return read(symbol.package, symbol.module).definitions[symbol.name]


def _span(node: ast.stmt) -> _Lines:
    """The first and last line, decorators among them."""
    decorators = node.decorator_list if isinstance(node, Definition) else []
    return min([node.lineno, *(part.lineno for part in decorators)]), _end(node)


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
