"""Compares published models of two libraries: the table in docs/compare.md, and rename tables.

Run it with `make evidence STEP=published`. Both are written to the step's folder.
"""

import os
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"  # for this process
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from evidence import HOUSE, made_by, wrapped, write
from published_pairs import OTHERWISE, PAIRS, PLANTED, WITHOUT_FLAX, compare, family_of, report_of, told

from rosettaformer.comparison.matching import rename_table

PAGE, MARK = "docs/compare.md", "<!-- published -->\n"
FORWARD = ("--only", "none")
SEEDS = range(1, 5)  # seeds of random sizes
TITLES = {
    "bert": "BERT", "roberta": "RoBERTa", "distilbert": "DistilBERT", "gpt2": "GPT-2", "llama": "Llama", "mistral": "Mistral",
    "qwen2": "Qwen 2", "qwen3": "Qwen 3", "gemma": "Gemma", "t5": "T5", "bart": "BART", "vit": "ViT",
}  # fmt: skip
RIGHTS = ("keras", "flax")


def cells(family: str, folder: Path, tables: Path) -> list[str]:
    """The cells of one row: the verdict with each library, and how many planted differences are named first there."""
    found, planted = [], [name for name in PLANTED if family_of(name) == family]
    for right in RIGHTS:
        if right == "flax" and family in WITHOUT_FLAX:
            found += ["none", ""]
            continue
        table = ("--write-rename", tables / f"{family}.toml") if right == "keras" else ()
        code = compare(PAIRS[family], right, family, folder, *FORWARD, *table).code
        hits = 0
        for name in planted:
            differs = compare(f"planted.py:{name}", right, family, folder, *FORWARD).code == 1
            hits += differs and PLANTED[name].is_named(report_of(folder))
        found += [("equal", "differs")[code] if code < 2 else "fails", f"{hits} of {len(planted)}"]
    return found


def section(tables: Path) -> tuple[str, list[str]]:
    """Returns the text after the mark, and a list of problems."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = {family: cells(family, folder, tables) for family in TITLES}
        pairs = [
            (family, seed, compare(left, "keras", family, folder, *FORWARD, "--set", f"seed={seed}").code)
            for family, left in PAIRS.items() if left.startswith("torch") for seed in SEEDS
        ]  # fmt: skip
        fixed = []
        for family in OTHERWISE:
            compare(f"torch.py:{family}", "keras", family, folder, *FORWARD)
            known = OTHERWISE[family]
            fixed.append(f"  - {TITLES[family]}, `{told(report_of(folder))[0][0]}`: {known.what or known.said}")
    ends = " and ".join(f"`{name.rpartition('.')[2]}`" for name in PLANTED["t5_scale"].where)
    planted = {family: ", ".join(PLANTED[name].what for name in PLANTED if family_of(name) == family) for family in TITLES}
    reasons: dict[str, list[str]] = {}
    for family, why in WITHOUT_FLAX.items():
        reasons.setdefault(why, []).append(TITLES[family])
    missing = "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())
    lines = [
        wrapped(
            f"{made_by('published')} The left is transformers {version('transformers')}, the right KerasHub {version('keras-hub')} or the "
            "Flax models of transformers 4.57.3; every pair is compared by the one command, without a table. The differences are planted "
            "in the left."
        ),
        "",
        "| family | KerasHub | named | Flax | named | planted |",
        "|---|---|---|---|---|---|",
        *(f"| {TITLES[family]} | {' | '.join(cell)} | {planted[family]} |" for family, cell in rows.items()),
        "",
        wrapped(
            "- A difference is named if the first sentence is about its place and says what it is. For T5's scale it only gives the place, "
            f"between {ends}, since the reference has no relative positions."
        ),
        "- As published three families differ from KerasHub's; here they have KerasHub's constants:",
        *fixed,
        f"- {sum(code == 0 for *_, code in pairs)} of {len(pairs)} pairs of random sizes are equal.",
        wrapped(f"- Not compared with Flax: {missing}."),
    ]
    counts = Counter(cell for row in rows.values() for cell in row[::2])
    problems = [f"{family}, seed {seed}: exit code {code}" for family, seed, code in pairs if code]
    problems += [f"{family}: {cell}" for family, row in rows.items() for cell in row if cell in ("differs", "fails")]
    problems += [f"{family}: {cell} named" for family, row in rows.items() for cell in row[1::2] if cell and len({*cell.split(" of ")}) > 1]
    return "\n".join(lines) + "\n", [*problems, *([] if counts["equal"] else ["nothing is compared"])]


def main(folder: Path) -> int:
    """Writes the page. Returns 1 if there are problems."""
    tables = folder / rename_table.TABLES.relative_to(HOUSE)
    tables.mkdir(parents=True, exist_ok=True)
    text, problems = section(tables)
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    before, mark, rest = (HOUSE / PAGE).read_text().partition(MARK)
    if not mark:
        raise ValueError(f"{PAGE} has no line {MARK.strip()}")
    write(folder, PAGE, before + mark + text + "\n## " + rest.partition("\n## ")[2])
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
