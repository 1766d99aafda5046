"""The source of a component: blocks (function, class, method) of pieces (statements)."""

import ast
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...judge.expectation.components import OWN, VJP
from .modules import Definition, Symbol, components_by_symbol, main_of, read

WITHIN = ("inputs", "beams")  # files without components; their definitions are shown where they are used
LONG = 4  # a statement of at least this many lines is shown part by part
_Lines = tuple[int, int]  # the first and the last line, counted from 1


@dataclass(frozen=True)
class Piece:
    """A statement with its comments; for a compound statement, only its header (signature,
    condition, loop).

    first, last: its lines in the file. node: the statement; opens: whether it is a header.
    """

    symbol: Symbol
    first: int
    last: int
    node: ast.stmt
    opens: bool

    @property
    def lines(self) -> tuple[str, ...]:
        """Its lines, exactly as in the file."""
        return read(self.symbol.package, self.symbol.module).lines[self.first - 1 : self.last]

    @property
    def text(self) -> str:
        """Its lines without leading blank ones."""
        return "\n".join(self.lines).lstrip("\n")

    @property
    def parts(self) -> Iterator[ast.AST]:
        """The nodes of the syntax tree that it holds."""
        if not self.opens:
            yield self.node
            return
        for field, value in ast.iter_fields(self.node):
            if field not in ("body", "orelse", "handlers", "finalbody"):
                yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, ast.AST))


@dataclass(frozen=True)
class Block:
    """A definition to show, without the component's docstring and other components."""

    symbol: Symbol
    pieces: tuple[Piece, ...]

    @property
    def lines(self) -> _Lines:
        """The first and last line of the definition, including decorators."""
        return _span(read(self.symbol.package, self.symbol.module).definitions[self.symbol.name])


@dataclass(frozen=True)
class Source:
    """A component's source in a package.

    bases: the classes of the file that its class inherits from. main: its own definitions. helpers:
    definitions that only it needs, in the order of the file. calls: other components that it uses.
    fast: definitions of `kernels` and `programs` that it calls. docstring: of the component.
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
    """Returns a component's source; for a gradient, only what the component does not show."""
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
            if other.name.endswith(VJP) and not component.endswith(VJP):
                continue  # a definition that chooses a head also names its gradient
            if other in known and other not in main:
                calls[known[other]] = None
            elif other.module.startswith(("kernels.", "programs.")):
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
    arguments = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}  # which hide definitions of the same names
    owner = symbol.name.rpartition(".")[0] or (symbol.name if isinstance(node, ast.ClassDef) else "")
    for part in [part for part in _statements(symbol, node, known) if not _is_docstring(part)] + node.decorator_list:
        for other in file.references(part, owner):
            within = owner and isinstance(node, ast.ClassDef) and other.name.startswith(f"{symbol.name}.")
            if other.name not in (symbol.name, *arguments) and not within:
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
    """Returns a class's base classes in the same file that are not components."""
    file = read(symbol.package, symbol.module)
    names = file.bases(symbol.name) if isinstance(_node(symbol), ast.ClassDef) else ()
    return [base for base in (Symbol(*symbol[:2], name) for name in names) if base not in known]


def _owner(symbol: Symbol) -> Symbol:
    """Returns the class of a method."""
    return Symbol(*symbol[:2], symbol.name.rpartition(".")[0])


def _methods_of_ports(symbol: Symbol, main: Sequence[Symbol]) -> Iterator[Symbol]:
    """Yields reference functions that are methods of the port's class."""
    if symbol != main[0] or symbol.name not in OWN or symbol.name.endswith(VJP):
        return
    port = main_of(symbol.name, "impl_torch")[0]
    if isinstance(_node(port), ast.ClassDef):
        names = {name.rpartition(".")[2] for name in read(port.package, port.module).definitions if name.startswith(f"{port.name}.")}
        yield from (Symbol(*symbol[:2], name) for name in read(*symbol[:2]).definitions if name in names)


def _belongs(other: Symbol, symbol: Symbol, known: Iterable[Symbol]) -> bool:
    """Returns whether a referenced definition is shown: same file, not a component."""
    if _owner(other) in known and "." in symbol.name:
        return False  # a method that is a component shows nothing else of a class that is a component
    return other.module in (symbol.module, *WITHIN)


def _block(symbol: Symbol, own: bool, known: Iterable[Symbol]) -> Block:
    return Block(symbol, tuple(Piece(symbol, *part) for part in _split(symbol, _node(symbol), own, known)))


def _split(symbol: Symbol, node: ast.stmt, own: bool, known: Iterable[Symbol]) -> Iterator[tuple[int, int, ast.stmt, bool]]:
    """Yields the pieces of a statement: first and last line, node, and whether it is a header."""
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
    """Returns whether a definition is the one shown or one of its methods."""
    shown = _node(symbol)
    return node is shown or (isinstance(shown, ast.ClassDef) and node in shown.body)


def _statements(symbol: Symbol, node: Definition, known: Iterable[Symbol]) -> Iterator[ast.stmt]:
    yield from (part for part in node.body if not (isinstance(part, Definition) and _is_other(symbol, part, known)))


def _is_other(symbol: Symbol, part: Definition, known: Iterable[Symbol]) -> bool:
    """Returns whether a method of a class is itself a component."""
    return Symbol(*symbol[:2], f"{symbol.name}.{part.name}") in known


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _node(symbol: Symbol) -> Definition:
    return read(symbol.package, symbol.module).definitions[symbol.name]


def _span(node: ast.stmt) -> _Lines:
    """Returns the first and last line, including decorators."""
    decorators = node.decorator_list if isinstance(node, Definition) else []
    return min([node.lineno, *(part.lineno for part in decorators)]), _end(node)


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
