"""Judges KerasHub's decoders on every backend of Keras and writes docs/keras-hub.md.

`make evidence STEP=keras-hub` is the command.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"  # of this process

from evidence import made_by, write
from hub_choices import BACKENDS, BASES, BESIDES, CHOICES, DIFFERENCES, FOLDERS, Difference
from hub_measured import Cell, Cells, besides, folder_cell, of_backend, surprises

NAMES = dict(zip(BACKENDS, ("TensorFlow", "JAX", "PyTorch"), strict=True))

HEAD = f"""# KerasHub's decoders

{made_by("keras-hub")}
KerasHub {version("keras-hub")} and Keras {version("keras")}: its backbones with small random weights, every one visible, beside the
reference on the same config, on a CPU. Hidden states (the backbone's output) and logits (the token embedding reversed) are compared with
the judge's tolerance, which is derived from the reference's own rounding ([decisions.md](decisions.md)); "n times" is the largest error in
units of the largest that passes. Where a cell says *differs*, the numbers are equal once the
cause that is named is repaired.
`rosettaformer check tests/ports/keras_hub_decoders.py` judges them on the suite's cases.

## Choice by choice

*equal*; *differs*, *as float32* and *fails*: the next table says why; -: the backbone has no option for it, or no value but its own. Rows
of padding and windows are measured on TensorFlow, JAX and PyTorch, the others on TensorFlow, in float32 unless they say otherwise.
`LlamaBackbone` and `Llama3Backbone` are one class.
"""
FOLDERS_HEAD = """
## Folders of Hugging Face

`Backbone.from_preset(folder)` of a small random model that transformers has written, in float32 on TensorFlow, beside the reference on the
same folder, which agrees with transformers (`tests/checkpoints/test_hugging_face_decoders.py`). Nothing warns where the numbers differ.
[drop-in.md](drop-in.md) has the entries with which each family's folder conforms.

| folder | logits | why |
|---|---|---|
"""


def page(found: Mapping[str, Cells], folders: Mapping[str, Cell]) -> str:
    """The whole page. found: the cells of every backend; folders: by name."""
    rows = [f"| {name} | {' | '.join(cell(found, family, name) for family in BASES)} |" for name in CHOICES]
    return "\n".join(
        [
            HEAD, f"| | {' | '.join(BASES)} |", f"|---|{'---|' * len(BASES)}", *rows, "",
            "## Where the numbers differ", "", "| choice | backbones | measured | why |", "|---|---|---|---|",
            *(f"| {one.choice} | {', '.join(one.families)} | {_measured(found, one)} | {one.why} |"
              for one in DIFFERENCES), "",
            "Besides:", "", *(f"- {text}" for text in BESIDES), FOLDERS_HEAD.rstrip(), *_folders(folders), "",
        ]
    )  # fmt: skip


def cell(found: Mapping[str, Cells], family: str, name: str) -> str:
    """What the first table says of a choice."""
    outcomes = [cells[family, name].outcome for cells in found.values() if (family, name) in cells]
    return next((outcome for outcome in outcomes if outcome != "equal"), "equal") or "-"


def _measured(found: Mapping[str, Cells], one: Difference) -> str:
    """The largest excess, and on which backends; on the others the numbers are equal."""
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
    """Measures everything and writes the page. Returns 1 where an outcome is another one."""
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
