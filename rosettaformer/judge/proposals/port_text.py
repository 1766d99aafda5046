"""Writes the text of a port file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...common.processes import printable
from . import words
from .draft import Draft, Selection
from .helpers import DIALECTS, helpers
from .weight_tables import tables_of

_OF_IDS = {f'"{name}"': f'lambda inputs: ids(inputs["{name}"])' for name in ("source", "target", "token")}  # ids, or soft rows
_POLICY = '''@contextlib.contextmanager
def policy(name):
    """Sets Keras's dtype policy during the block."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


'''


def written(draft: Draft, selection: Selection, file: str = "my_port.py", open_: Mapping[str, str] | None = None) -> str:
    """Returns the port with this selection. file: its name. open_: what is open, by name."""
    open_ = open_ or {}
    call = _call(draft, selection, open_)
    config = _config(draft, selection, open_)
    weights = _weights(draft, selection, open_)
    build = _build(draft)
    functions = helpers(call, draft.component, draft.adapter, draft.config(selection), draft.call.by_row)
    blocks = [_head(draft, file, functions, functions + build + call), functions, build, weights, call, config, _foot(draft)]
    return "\n".join(_spaced([block for block in blocks if block])) + "\n"


def _spaced(blocks: Sequence[str]) -> Iterator[str]:
    """Yields the blocks with one empty line between them, and two around functions and classes."""
    for index, block in enumerate(blocks):
        if index:
            ends = blocks[index - 1].splitlines()[-1].startswith("    ")
            yield "\n" if block.startswith(("def ", "class ")) or ends else ""
        yield block


def _head(draft: Draft, file: str, functions: str, code: str) -> str:
    decided = "\n".join(_decided(draft))
    doc = f'"""{words.title(draft.source.name, draft.component, file)}\n{decided}\n"""'
    imports = [draft.source.imported, *draft.construction.imports]
    if names := ["CLASSIC"] * (not draft.is_modern) + ["NotCovered"] * ("NotCovered" in functions):
        imports.append(f"from rosettaformer.ports import {', '.join(names)}")
    imports = ["import sys"] * ("sys.path" in draft.source.imported) + imports
    imports = ["import contextlib"] * (draft.framework == "keras") + imports
    libraries = [line for line in DIALECTS[draft.adapter].imports if f"{line.split()[-1]}." in code]
    lines = [*libraries, *dict.fromkeys(line for line in imports if line and line not in libraries)]
    return doc.replace('\n\n"""', '\n"""').replace("\n\n\n", "\n\n") + "\n\n" + "\n".join(lines)


def _decided(draft: Draft) -> Iterator[str]:
    """Yields the values chosen by trials, as paragraphs of the file's docstring."""
    heading = words.matching(draft.deviation.title if draft.deviation else "", draft.form)
    for title, found in ((heading, draft.tried), (words.CLOSEST, draft.nearest)):
        if found:
            yield "\n    ".join([f"\n{title}", *(f"{name}: {value}" for name, value in found.items() if value)])


def _build(draft: Draft) -> str:
    made, parent, own = draft.construction.text, "", list[str]()
    head = f'framework = "{draft.adapter}"'
    own += [f"{_attribute(leaf.path)} = None  # {words.UNPAIRED}" for leaf in draft.match.unpaired]
    if draft.framework == "nnx":
        own.append("nnx.update(module, jax.tree.map(lambda value: value.astype(dtype), nnx.state(module, nnx.Param)))")
    lines = [f"module = {made}", *own, "return module"] if own else [f"return {made}"]
    if draft.framework == "keras":
        lines = ["with policy(dtype.name):", *(f"    {line}" for line in lines)]
        parent += _POLICY
    body = "\n".join(f"    {line}" for line in lines)
    return f'{parent}def build(config, dtype):\n{body}\n\n\n{head}\ncomponents = {{"{draft.component}": build}}'


def _attribute(path: str) -> str:
    """Returns the expression for the attribute of the module at a native path."""
    return "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in ["module", *path.split(".")])[1:]


def _call(draft: Draft, selection: Selection, open_: Mapping[str, str]) -> str:
    lines = [
        f'        "{name}": {_OF_IDS.get(text, text)},{_todo(open_, f"argument {name}")}' for name, text in draft.given(selection).items()
    ]
    lines += [f'        "return": lambda output, inputs: {draft.output},'] * (draft.output != "output")
    lines += [f'        "{name}": lambda inputs: None,  # {words.TODO} {words.UNKNOWN}' for name in draft.call.unknown]
    if not lines:
        return f"# {words.TODO} {open_['failure']}" if "failure" in open_ else ""
    body = "\n".join([*lines, *([f"        # {words.TODO} {open_['failure']}"] if "failure" in open_ else [])])
    return f'# {words.CALL}\ncall = {{\n    "{draft.component}": {{\n{body}\n    }},\n}}'


def _config(draft: Draft, selection: Selection, open_: Mapping[str, str]) -> str:
    fields = draft.config(selection)
    base = "" if draft.is_modern else "CLASSIC"
    if not fields:
        return base and f"config = {base}"
    body = "\n".join(f'    "{name}": {_literal(value)},{_todo(open_, name)}' for name, value in fields.items())
    return f"# {words.CONFIG}\nconfig = {base and base + ' | '}{{\n{body}\n}}"


def _weights(draft: Draft, selection: Selection, open_: Mapping[str, str]) -> str:
    root = draft.root(selection)
    tables = tables_of(root)
    notes = [words.unmatched(leaf.path, leaf.shape) for leaf in draft.match.left]
    notes += [text for name, text in open_.items() if name.startswith("missing ")]
    if not any(tables.values()) and not notes:
        return ""
    lines = []
    for component, rows in tables.items():
        notes_of = [
            f"{name}: {text}" for name, text in open_.items()
            if name.startswith(("axes of", "order of")) and name.endswith(f" {component}")
        ]  # fmt: skip
        inside = [*(f"# {words.TODO} {text}" for text in notes_of), *(f"{_tuple(row)}," for row in rows)]
        lines += [f'    "{component}": (', *(f"        {line}" for line in inside), "    ),"]
    body = "\n".join([*lines, *(f"    # {note}" for note in notes)])
    return f"# {words.WEIGHTS}\nweights = {{\n{body}\n}}"


def _tuple(row: Sequence[str]) -> str:
    return "(" + ", ".join(f'"{text}"' for text in row) + ")"


def _foot(draft: Draft) -> str:
    modes = "modes = ('eager', 'compiled')\n" if draft.adapter == "jax" else ""
    why = f"  # in float64: {printable(draft.refused)[:100]}" * bool(draft.refused)
    return f"{modes}dtypes = {draft.dtypes!r}".replace("'", '"') + why


def _todo(open_: Mapping[str, str], name: str) -> str:
    return f"  # {words.TODO} {open_[name]}" if name in open_ else ""


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
