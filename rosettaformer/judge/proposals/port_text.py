"""Writes the text of a port's file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...common.processes import printable
from .draft import Draft, Selection
from .helpers import DIALECTS, helpers
from .weight_tables import tables_of

_OF_IDS = {f'"{name}"': f'lambda inputs: ids(inputs["{name}"])' for name in ("source", "target", "token")}  # ids, or soft rows
TODO = "TODO: decide:"
UNPAIRED = "left out: the other projections have no bias, and the reference has four or none"
_POLICY = '''@contextlib.contextmanager
def policy(name):
    """Keras's dtype policy, of the layers that are made in the block."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


'''


def written(draft: Draft, selection: Selection, file: str = "my_port.py", open_: Mapping[str, str] | None = None) -> str:
    """Returns the port of a draft with this selection. file: its name. open_: what is still to be decided, by its name."""
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
    doc = f'''"""A port of {draft.source.name}, as {draft.component}, proposed from its constructor, its parameters and its arguments.

    rosettaformer check {file}       runs every case of the component through it
    rosettaformer diagnose {file}    says what is wrong with it, and how to fix it
{decided}
"""'''
    imports = [draft.source.imported, *draft.construction.imports]
    if names := ["CLASSIC"] * (not draft.is_modern) + ["NotCovered"] * ("NotCovered" in functions):
        imports.append(f"from rosettaformer.ports import {', '.join(names)}")
    imports = ["import sys"] * ("sys.path" in draft.source.imported) + imports
    imports = ["import contextlib"] * (draft.framework == "keras") + imports
    libraries = [line for line in DIALECTS[draft.adapter].imports if f"{line.split()[-1]}." in code]
    lines = [*libraries, *dict.fromkeys(line for line in imports if line and line not in libraries)]
    return doc.replace('\n\n"""', '\n"""').replace("\n\n\n", "\n\n") + "\n\n" + "\n".join(lines)


def _decided(draft: Draft) -> Iterator[str]:
    """Yields what trying decided, in the words of the file's head."""
    with_what = f" with {draft.deviation.title}, which its norms have" if draft.deviation else ""
    with_what += f"; its output is {draft.form} the logits" if draft.form else ""
    for title, found in (
        (f"Decided by trying, since these gave the reference's numbers{with_what}:", draft.tried),
        ("Nothing gave the reference's numbers; these are by far the nearest:", draft.nearest),
    ):
        if found:
            yield "\n    ".join([f"\n{title}", *(f"{name}: {value}" for name, value in found.items() if value)])


def _build(draft: Draft) -> str:
    made, parent, own = draft.construction.text, "", list[str]()
    head = f'framework = "{draft.adapter}"'
    own += [f"{_attribute(leaf.path)} = None  # {UNPAIRED}" for leaf in draft.match.unpaired]
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
    lines += [f'        "{name}": lambda inputs: None,  # {TODO} what this argument is given' for name in draft.call.unknown]
    if not lines:
        return f"# {TODO} {open_['failure']}" if "failure" in open_ else ""
    body = "\n".join([*lines, *([f"        # {TODO} {open_['failure']}"] if "failure" in open_ else [])])
    return f'# argument of the module: input of the component\ncall = {{\n    "{draft.component}": {{\n{body}\n    }},\n}}'


def _config(draft: Draft, selection: Selection, open_: Mapping[str, str]) -> str:
    fields = draft.config(selection)
    base = "" if draft.is_modern else "CLASSIC"
    if not fields:
        return base and f"config = {base}"
    body = "\n".join(f'    "{name}": {_literal(value)},{_todo(open_, name)}' for name, value in fields.items())
    return f"# config fields that the module fixes: the cases are made with these values\nconfig = {base and base + ' | '}{{\n{body}\n}}"


def _weights(draft: Draft, selection: Selection, open_: Mapping[str, str]) -> str:
    root = draft.root(selection)
    tables = tables_of(root)
    notes = [f"{TODO} which parameter is {leaf.path} of shape {leaf.shape}?" for leaf in draft.match.left]
    notes += [text for name, text in open_.items() if name.startswith("missing ")]
    if not any(tables.values()) and not notes:
        return ""
    lines = []
    for component, rows in tables.items():
        notes_of = [
            f"{name}: {text}" for name, text in open_.items()
            if name.startswith(("axes of", "order of")) and name.endswith(f" {component}")
        ]  # fmt: skip
        inside = [*(f"# {TODO} {text}" for text in notes_of), *(f"{_tuple(row)}," for row in rows)]
        lines += [f'    "{component}": (', *(f"        {line}" for line in inside), "    ),"]
    body = "\n".join([*lines, *(f"    # {note}" for note in notes)])
    return f"# end of the canonical name, end of the module's own name, axes of the module's tensor\nweights = {{\n{body}\n}}"


def _tuple(row: Sequence[str]) -> str:
    return "(" + ", ".join(f'"{text}"' for text in row) + ")"


def _foot(draft: Draft) -> str:
    modes = "modes = ('eager', 'compiled')\n" if draft.adapter == "jax" else ""
    why = f"  # in float64: {printable(draft.refused)[:100]}" * bool(draft.refused)
    return f"{modes}dtypes = {draft.dtypes!r}".replace("'", '"') + why


def _todo(open_: Mapping[str, str], name: str) -> str:
    return f"  # {TODO} {open_[name]}" if name in open_ else ""


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
