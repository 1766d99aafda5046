"""Makes the lists of fields in docs/json.md from what rosettaformer/common/outputs.toml declares.

python tools/json_fields.py
"""

from evidence import HOUSE, wrapped

from rosettaformer.common.atomic import write_text
from rosettaformer.common.outputs import declared

__all__ = ["PAGE", "page"]

PAGE, MARK, END = HOUSE / "docs" / "json.md", "<!-- fields -->\n", "\nNext: "


def fields() -> str:
    """A section for each command: the version of its fields, and an item for each field."""
    sections = []
    for command, names in declared().items():
        items = []
        for name, text in names.items():
            if name != "version":
                kind, _, meaning = text.partition(": ")
                items.append(wrapped(f"- `{name}` ({kind}): {meaning}"))
        sections.append("\n".join([f"## {command}", f"Version {names['version']}.", *items, ""]))
    return "\n".join(sections)


def page() -> str:
    """The page with these sections between its mark and its last line."""
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition(MARK)
    return before + mark + "\n" + fields() + END + rest.rpartition(END)[2]


if __name__ == "__main__":
    write_text(PAGE, page())
