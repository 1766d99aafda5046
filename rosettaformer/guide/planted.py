"""Known bugs, planted in the guide's plain files.

`snippets/components/wrong.txt` has pieces under the `[file.function]` that holds them. A piece
starts with `right`, whole lines that occur in it once. Its other fields are ids of known bugs, with
the lines that replace the piece, or, as `id.before` and `id.after`, the lines that a bug adds.
"""

import functools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from .blocks import blocks

FOLDER = resources.files(__package__) / "snippets" / "components"


@dataclass(frozen=True)
class Edit:
    """Whole lines of a function in a file, fixed and broken."""

    file: str
    function: str
    right: str
    wrong: str

    def applied(self, text: str) -> str:
        """Returns the edited text of the file.

        Raises ValueError unless the fixed lines occur exactly once in the function.
        """
        before, start, after = f"\n{text}".partition(f"\ndef {self.function}(")
        body, end, rest = after.partition("\n\n\n")
        body = f"{start}{body}\n"
        if (count := body.count(f"\n{self.right}")) != 1:
            where = f"{self.function} in {self.file} must contain these lines once"
            raise ValueError(f"{where}; found {count} times:\n{self.right}")
        body = body.replace(f"\n{self.right}", f"\n{self.wrong}")
        return f"{before}{body[:-1]}{end}{rest}"[1:]


@functools.cache
def planted() -> Mapping[str, Sequence[Edit]]:
    """Returns the edits of each known bug by id, in the order of the plain file."""
    found: dict[str, list[Edit]] = {}
    for block in blocks(_text("wrong.txt"), "right"):
        file, _, functions = block.id.partition(".")
        right, *bugs = block.fields.items()
        piece = _lines(right[1], " " * 4)
        for function in functions.split("+"):
            for name, value in bugs:
                identity, _, place = name.partition(".")
                wrong = _lines(value, piece[: len(piece) - len(piece.lstrip())])
                whole = {"": wrong, "before": wrong + piece, "after": piece + wrong}[place]
                found.setdefault(identity, []).append(Edit(f"{file}.py", function, piece, whole))
    return {identity: sorted(edits, key=_place) for identity, edits in found.items()}


def applied(edits: Sequence[Edit]) -> str:
    """Returns the text of the plain file with these edits, applied from last to first."""
    (file,) = {edit.file for edit in edits}
    return functools.reduce(lambda text, edit: edit.applied(text), reversed(edits), _text(file))


def _place(edit: Edit) -> int:
    text = f"\n{_text(edit.file)}"
    return text.find(f"\n{edit.right}", text.find(f"\ndef {edit.function}("))


def _lines(value: str, indentation: str) -> str:
    """Returns whole lines of a function. indentation: for a one-line value."""
    if value and "\n" not in value and not value.startswith(" "):
        return f"{indentation}{value}\n"
    return textwrap.indent(value, " " * 4) + "\n" * bool(value)


@functools.cache
def _text(file: str) -> str:
    return (FOLDER / file).read_text(encoding="utf-8")
