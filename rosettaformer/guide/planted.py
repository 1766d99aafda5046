"""Known bugs, planted in the guide's plain files.

`snippets/components/wrong.toml` has tables `[[file.function]]`. `right` is a piece of that function:
whole lines that occur in it once. Every other key is the id of a known bug; its value replaces the
piece.
"""

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

FOLDER = resources.files(__package__) / "snippets" / "components"


@dataclass(frozen=True)
class Edit:
    """Whole lines of a function in a file, right and wrong."""

    file: str
    function: str
    right: str
    wrong: str

    def applied(self, text: str) -> str:
        """Returns the edited text of the file.

        Raises ValueError unless the function holds the right lines once.
        """
        before, start, after = f"\n{text}".partition(f"\ndef {self.function}(")
        body, end, rest = after.partition("\n\n\n")
        body = f"{start}{body}\n"
        if (count := body.count(f"\n{self.right}")) != 1:
            where = f"{self.function} in {self.file} must have these lines once"
            raise ValueError(f"{where}; it has them {count} times:\n{self.right}")
        body = body.replace(f"\n{self.right}", f"\n{self.wrong}")
        return f"{before}{body[:-1]}{end}{rest}"[1:]


@functools.cache
def planted() -> Mapping[str, Sequence[Edit]]:
    """Returns the edits of each known bug by its id, in the order of the file."""
    found: dict[str, list[Edit]] = {}
    for name, functions in tomllib.loads(_text("wrong.toml")).items():
        for function, pieces in functions.items():
            for piece in pieces:
                right, *bugs = piece.items()
                for identity, wrong in bugs:
                    edit = Edit(f"{name}.py", function, _lines(right[1]), _lines(wrong))
                    found.setdefault(identity, []).append(edit)
    return found


def applied(edits: Sequence[Edit]) -> str:
    """Returns the text of the plain file with these edits, the last of which is made first."""
    (file,) = {edit.file for edit in edits}
    return functools.reduce(lambda text, edit: edit.applied(text), reversed(edits), _text(file))


def _lines(value: str) -> str:
    return value.strip("\n") + "\n" if value else ""


@functools.cache
def _text(file: str) -> str:
    return (FOLDER / file).read_text(encoding="utf-8")
