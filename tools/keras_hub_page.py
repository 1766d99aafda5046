"""Judges KerasHub's decoders on every Keras backend and writes docs/keras-hub.md.

Run it with `make evidence STEP=keras-hub`.
"""

import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"  # of this process

from evidence import made_by, write
from hub_choices import BACKENDS, BASES, BESIDES, CHOICES, DIFFERENCES, FOLDERS, Difference
from hub_folders import table
from hub_measured import Cell, Cells, besides, folder_cell, of_backend, surprises

NAMES = dict(zip(BACKENDS, ("TensorFlow", "JAX", "PyTorch"), strict=True))

SHORT = {"equal": "=", "differs": "≠", "as float32": "f32", "fails": "error", "": "-"}

HEAD = f"""# KerasHub's decoders compared with the reference

Which of KerasHub's decoders give the reference's numbers, why the others differ, and which entries
of a Hugging Face checkpoint their converters ignore.

    rosettaformer check tests/ports/keras_hub_decoders.py

runs them on the suite's cases. {{summary}}

{made_by("keras-hub")}
KerasHub {version("keras-hub")} and Keras {version("keras")} on a CPU: backbones with small random weights, all of which
affect the output. Hidden states and logits (the token embedding reversed) are compared with the
judge's tolerance ([decisions.md](decisions.md#tolerance)); "n times" is the largest error divided
by it. Each difference disappears once the cause named below is repaired.

## Choice by choice

`=`: equal; `≠`: differs; `f32`: differs, since it computes in float32; `error`: an exception;
`-`: no such option, or only one value. Padding and windows are measured on TensorFlow, JAX and
PyTorch, the others on TensorFlow, in float32 unless they say otherwise. `LlamaBackbone` and
`Llama3Backbone` are one class.
"""
FOLDERS_HEAD = """
## Hugging Face checkpoints

Small random checkpoints of transformers, read by `Backbone.from_preset(folder)` in float32 on
TensorFlow. The reference reads them as transformers does. There is no warning where logits differ.

| checkpoint | logits | why |
|---|---|---|
"""
ENTRIES_HEAD = """
## Entries of config.json

On TensorFlow a model of `rosettaformer new-checkpoint FAMILY` conforms, in float32 and bfloat16
(BERT's hidden states in float32), if `--set` gives it these entries. With the family's own value of
any of them it does not. The [port](drop-in.md) that checks this is `keras_hub_port.py`.
"""
NEXT = "Next: [drop-in.md](drop-in.md) checks your own KerasHub model."


def page(found: Mapping[str, Cells], folders: Mapping[str, Cell]) -> str:
    """Returns the whole page. found: the cells of every backend; folders: by name."""
    cells = {name: [cell(found, family, name) for family in BASES] for name in CHOICES}
    shown = [one for row in cells.values() for one in row if one != SHORT[""]]
    summary = f"Below, {shown.count(SHORT['equal'])} of {len(shown)} pairs of backbone and choice are equal."
    return "\n".join(
        [
            HEAD.replace("{summary}", summary), f"| | {' | '.join(BASES)} |", f"|---|{'---|' * len(BASES)}",
            *(f"| {name} | {' | '.join(row)} |" for name, row in cells.items()), "",
            "## Where the numbers differ", "",
            *(_item(f"**{one.choice}** ({', '.join(one.families)}; {_measured(found, one)}): {one.why}") for one in DIFFERENCES), "",
            "Also:", "", *map(_item, BESIDES), FOLDERS_HEAD.rstrip(), *_folders(folders), ENTRIES_HEAD, table(), NEXT, "",
        ]
    )  # fmt: skip


def cell(found: Mapping[str, Cells], family: str, name: str) -> str:
    """Returns the cell of a choice in the first table."""
    outcomes = [cells[family, name].outcome for cells in found.values() if (family, name) in cells]
    return SHORT[next((outcome for outcome in outcomes if outcome != "equal"), "equal")]


def _item(text: str) -> str:
    """Returns a wrapped item of a list."""
    return textwrap.fill(f"- {text}", 99, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def _measured(found: Mapping[str, Cells], one: Difference) -> str:
    """Returns the largest excess and the backends that have it; on the others the numbers are equal."""
    where = [NAMES[backend] for backend in one.backends]
    if one.outcome == "fails":
        return "an error of shapes"
    largest = max(found[backend][family, one.choice].excess for backend in one.backends for family in one.families)
    return f"{largest:.1g} times" + (f" on {' and '.join(where)}" if len(CHOICES[one.choice].backends) > 1 else "")


def _folders(folders: Mapping[str, Cell]) -> Iterator[str]:
    for folder in FOLDERS:
        cell = folders[folder.name]
        said = f"differs, {cell.excess:.1g} times" if cell.outcome == "differs" else cell.outcome
        yield f"| {folder.name} | {said} | {folder.why} |"


def main(folder: str) -> int:
    """Measures everything and writes the page. Returns 1 if an outcome is not the expected one."""
    found = {backend: of_backend(backend) for backend in BACKENDS}
    folders = {folder.name: folder_cell(folder) for folder in FOLDERS}
    problems = [text for backend, cells in found.items() for text in surprises(backend, cells)]
    problems += [f"{folder.name}: {folders[folder.name]}" for folder in FOLDERS if folders[folder.name].outcome != folder.outcome]
    problems += [f"not so: {text}" for text, so in zip(BESIDES, besides(), strict=True) if not so]
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    write(Path(folder), "docs/keras-hub.md", page(found, folders))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
