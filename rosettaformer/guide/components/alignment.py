"""Aligns the four sources of a component in rows: corresponding statements share a row.

Columns are aligned one after another with the previous ones, maximizing the total similarity of
statements in order. The similarity of two statements is that of their names, weighted by rarity,
after mapping each framework's names to common ones.
"""

import ast
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ...judge.components import DECLARED
from .modules import read
from .sources import Block, Piece, Source

Row = tuple[Piece | None, ...]  # a statement of each column, None if it has none
LEAST = 0.2  # the least likeness of two statements in the same row
MAIN = "main"
FIRST = 5  # the likeness of the definitions that a component is called by, so that they share a row whatever stands around them
# one thing's names in the frameworks
SAME = {
    "forward": MAIN, "call": MAIN, "__call__": MAIN,
    "astype": "cast", "to": "cast", "dim": "axis", "keepdim": "keepdims", "repeat_interleave": "repeat", "masked_fill": "where",
    "rsqrt": "sqrt", "matmul": "einsum", "cat": "concatenate", "concat": "concatenate", "unsqueeze": "expand_dims",
    "permute": "transpose", "take_along_axis": "gather", "fill": "full", "output_projection": "output", "clamp": "maximum",
    "arange": "range", "logsumexp": "log_softmax", "Module": "Layer", "nest": "map", "logical_and": "and",
}  # fmt: skip
IGNORED = {"self", "np", "torch", "tf", "jnp", "jax", "nn", "nnx", "keras", "F", "lax", "math", "arithmetic", "precision", "dtype",
           "shape", "name", "super", "kwargs", "Any", "param_dtype", "rngs"}  # fmt: skip


def aligned(sources: Sequence[Source], component: str) -> list[Row]:
    """Returns the rows of the sources, one column each."""
    words = {piece: _words(piece, component) for source in sources for block in source.blocks for piece in block.pieces}
    weights = _weights(words.values())
    likeness = _Likeness(words, weights)
    columns = _best_orders(sources, likeness)
    rows: list[Row] = [(piece, *[None] * (len(columns) - 1)) for piece in columns[0]]
    for index, column in enumerate(columns[1:], 1):
        rows = _joined(rows, column, index, likeness)
    for index, column in enumerate(columns):  # again, each against all of the others
        rest = [row for row in (_with(row, index, None) for row in rows) if any(row)]
        rows = _joined(rest, column, index, likeness)
    return rows


def orders(source: Source) -> tuple[tuple[Piece, ...], ...]:
    """Returns the possible orders of a source: helpers after it, as in the file, or each after its
    first use; and both with base classes last.
    """
    found: dict[tuple[Piece, ...], None] = {}
    for blocks in ((*source.bases, *source.main), (*source.main, *source.bases)):
        found[tuple(piece for block in (*blocks, *source.helpers) for piece in block.pieces)] = None
        left = {block.symbol: block for block in source.helpers}
        inline = [piece for block in blocks for piece in _inline(block, left)]
        found[(*inline, *(piece for block in left.values() for piece in block.pieces))] = None
    return tuple(found)


def _inline(block: Block, left: dict) -> Iterator[Piece]:
    file = read(*block.symbol[:2])
    owner = block.symbol.name.rpartition(".")[0]
    for piece in block.pieces:
        yield piece
        found = [symbol for part in piece.parts for symbol in file.references(part, owner)]
        for symbol in found:
            if symbol in left:
                yield from _inline(left.pop(symbol), left)


def _best_orders(sources: Sequence[Source], likeness: "_Likeness") -> list[tuple[Piece, ...]]:
    """Returns the order of each source that makes the ports most similar to the reference."""
    firsts, *others = (orders(source) for source in sources)
    best, most = [firsts[0]], -math.inf
    for first in firsts:
        chosen = [max((_path(likeness.between(first, order))[1], i, order) for i, order in enumerate(each)) for each in others]
        if (total := sum(score for score, *_ in chosen)) > most:
            best, most = [first, *(order for *_, order in chosen)], total
    return best


def _joined(rows: list[Row], column: Sequence[Piece], index: int, likeness: "_Likeness") -> list[Row]:
    """Aligns another column and inserts it into the rows at its index."""
    scores = np.full((len(rows), len(column)), -1.0)
    for other in {i for row in rows for i, piece in enumerate(row) if piece}:
        own = [(i, row[other]) for i, row in enumerate(rows) if row[other]]
        places = [i for i, _ in own]
        scores[places] = np.maximum(scores[places], likeness.between([piece for _, piece in own if piece], column))
    by_row = dict(_path(scores)[0])
    empty: Row = (None,) * (len(rows[0]) if rows else 1)
    result, done = [], 0
    for i, row in enumerate(rows):
        if i in by_row:
            result += [_with(empty, index, piece) for piece in column[done : by_row[i]]]
            row, done = _with(row, index, column[by_row[i]]), by_row[i] + 1
        result.append(row)
    return result + [_with(empty, index, piece) for piece in column[done:]]


def _path(scores: np.ndarray) -> tuple[list[tuple[int, int]], float]:
    """Returns the increasing pairs (i, j) with the largest sum of scores, and that sum."""
    height, width = scores.shape
    gains = scores - LEAST
    total = np.zeros((height + 1, width + 1))
    for i in range(height):
        diagonal = np.maximum(total[i, :-1] + gains[i], total[i, 1:])
        total[i + 1, 1:] = np.maximum.accumulate(diagonal)
    pairs, i, j = [], height, width
    while i and j:
        if total[i, j] == total[i - 1, j]:
            i -= 1
        elif total[i, j] == total[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1], float(total[-1, -1])


class _Likeness:
    """Returns the similarity, 0 to about 1, `FIRST` for entry points, below 0 for other kinds."""

    def __init__(self, words: dict[Piece, Counter[str]], weights: dict[str, float]) -> None:
        self._index = {piece: i for i, piece in enumerate(words)}
        place = {word: i for i, word in enumerate(weights)}
        vectors = np.zeros((len(words), len(weights)))
        for piece, counted in words.items():
            for word, count in counted.items():
                vectors[self._index[piece], place[word]] = math.sqrt(count) * weights[word]
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        kinds = np.array([_kind(piece) for piece in words])
        self._scores = vectors @ vectors.T
        begins = np.array([f"=def {MAIN}" in counted for counted in words.values()])
        self._scores[begins[:, None] & begins[None, :]] = FIRST
        self._scores[kinds[:, None] != kinds[None, :]] = -1
        methods = np.array([_method(piece) for piece in words])
        apart = (methods[:, None] != "") & (methods[None, :] != "") & (methods[:, None] != methods[None, :])
        self._scores[apart] = -1

    def between(self, first: Sequence[Piece], second: Sequence[Piece]) -> np.ndarray:
        """Returns the similarity of each of the first pieces to each of the second."""
        return self._scores[np.ix_([self._index[piece] for piece in first], [self._index[piece] for piece in second])]


def _kind(piece: Piece) -> str:
    """Returns the kind of a piece; definitions match only definitions, and classes only classes."""
    return type(piece.node).__name__ if isinstance(piece.node, ast.FunctionDef | ast.ClassDef) else "statement"


def _method(piece: Piece) -> str:
    """Returns the common name of the method around a statement; empty outside methods."""
    shown = read(*piece.symbol[:2]).definitions[piece.symbol.name]
    for part in shown.body if isinstance(shown, ast.ClassDef) else ():
        if isinstance(part, ast.FunctionDef) and part.lineno <= piece.node.lineno <= (part.end_lineno or 0):
            name = SAME.get(part.name, part.name)
            return "__init__" if name == "build" else name
    return ""


def _weights(pieces: Iterable[Counter[str]]) -> dict[str, float]:
    counted = list(pieces)
    found = Counter(word for words in counted for word in words)
    return {word: math.log(1 + len(counted) / count) * (3 if word.startswith("=") else 1) for word, count in found.items()}


def _words(piece: Piece, component: str) -> Counter[str]:
    """Returns the common names in a piece. Assigned and defined names count as `=name`."""
    node = piece.node
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        name = _plain(node.name, component)
        arguments = [_plain(part.arg, component) for part in ast.walk(getattr(node, "args", ast.arguments([], [], None, [], [], None, [])))
                     if isinstance(part, ast.arg) and part.arg not in IGNORED]  # fmt: skip
        return Counter([f"={name}", f"=def {name}", *arguments])
    words = Counter(word for part in piece.parts for word in _names(part, component))
    words[type(node).__name__] += 1
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []
    for target in itertools.chain.from_iterable(ast.walk(target) for target in targets):
        if isinstance(target, ast.Name | ast.Attribute) and not (isinstance(target, ast.Name) and target.id == "self"):
            words[f"={_stem(_plain(target.id if isinstance(target, ast.Name) else target.attr, component))}"] += 1
    return words


def _names(node: ast.AST, component: str) -> Iterator[str]:
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)) | ast.arg(arg=name):
                found = [_plain(name, component)] if name not in IGNORED else []
            case ast.Constant(value=str(text)):
                found = re.findall(r"[A-Za-z_]\w*", text)[:6]
            case ast.Constant(value=float(number)):
                found = [str(number)]
            case ast.Raise() | ast.Return():
                found = [type(part).__name__]
            case _:
                found = []
        for name in found:
            yield name
            if _stem(name) != name:
                yield _stem(name)


def _plain(name: str, component: str) -> str:
    """Maps a framework's name to the common one."""
    if name in (component, DECLARED[component].class_name):
        return MAIN
    if name not in SAME:
        name = name.removeprefix("_").removesuffix("_").removeprefix("reduce_")
    return SAME.get(name, name.lower())


def _stem(name: str) -> str:
    """Returns a name without its axes."""
    return re.sub(r"_[a-z1]{1,5}$", "", name)


def _with(row: Row, index: int, piece: Piece | None) -> Row:
    return (*row[:index], piece, *row[index + 1 :])
