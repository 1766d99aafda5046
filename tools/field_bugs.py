"""Re-creates bugs of published ports, judges each, and writes docs/field-bugs.md.

Run it with `make evidence STEP=field-bugs`.
"""

import functools
import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "ports"))

import field_bugs
import torch
import transformers
from evidence import HOUSE, kept, made_by, write
from safetensors.torch import load_file, save_file

from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge import diagnosis, runner
from rosettaformer.judge.diagnosis.findings import Verdict
from rosettaformer.judge.status import FAILURES, Status
from rosettaformer.judge.suite.like_folders import cases_of

PORT = str(HOUSE / "tests" / "ports" / "field_bugs.py")
FIELD = HOUSE / "tests" / "support" / "field_bugs.toml"
DTYPES = ("float32", "bfloat16")
LIMIT = 1200.0  # seconds for a diagnosis, on a busy machine, too
TOKENS, ATOL = 5, 1e-2  # the usual practice: a short prompt, and a manually chosen tolerance
NAMED = (Verdict.EXPLAINED, Verdict.INDISTINGUISHABLE, Verdict.FOLLOWS)
DESCRIBED = (Verdict.DESCRIBED, Verdict.IMPRECISE)

HEAD = f"""# Bugs from published ports

Which bugs of published ports `check` catches and `diagnose` names, and how many of them the usual
practice sees. For everyone who asks whether the judge finds bugs that people make.

{{summary}}

    FIELD_BUG=20 rosettaformer check tests/ports/field_bugs.py --like qwen3 --dtype float32,bfloat16
    FIELD_BUG=20 rosettaformer diagnose tests/ports/field_bugs.py --like qwen3 --dtype float32,bfloat16

{made_by("field-bugs")}
The bugs were collected from their threads. Each bug in a feature that the reference has was
re-created in transformers {version("transformers")}, on a random model of `rosettaformer new-checkpoint`
([field_bugs.py](../tests/ports/field_bugs.py)).

- **caught**: the comparisons that differ.
- **begins** and **diagnose**: where the error begins, and the bug by its id (`rosettaformer explain
  ID`), or the setting.
- **five tokens**: whether the usual practice sees it, and its error: the last logits of a prompt of
  {TOKENS} tokens with an absolute tolerance of {ATOL:g}, on a model as the library initializes it.
"""
TABLE = "| | bug | thread | caught | begins | diagnose | five tokens |\n|---|---|---|---|---|---|---|"
NEXT = "Next: [evidence.md](evidence.md), the results for bugs that were written for tests."


NOT_CAUGHT = "no"


class Judged(NamedTuple):
    """The results for a bug. caught: how many comparisons differ; begins, names: the diagnosis; five: the usual practice's error."""

    caught: str
    begins: str
    names: str
    five: float


def judged(bug: str) -> Judged:
    """Judges a port with the bug."""
    own = field_bugs.BUGS[bug]
    with tempfile.TemporaryDirectory() as root:
        new.write(own.family, Path(root, "own"), settings=own.settings)
        _change(own, Path(root, "own", "model.safetensors"))
        folder = Path(root, "each")
        folder.mkdir()
        cases = cases_of(str(Path(root, "own")), folder, ("float64", *DTYPES))
        os.environ["FIELD_BUG"] = bug
        try:
            results = runner.run(cases, [PORT], DTYPES)
            wrong = [result for result in results if result.status in FAILURES]
            found = diagnosis.diagnose(PORT, cases=cases, limit=LIMIT).findings if wrong else []
        finally:
            del os.environ["FIELD_BUG"]
        return Judged(_caught(results, wrong), *_said(found), _practice(own, str(folder / "float32")))


def _change(bug: field_bugs.Bug, path: Path) -> None:
    """Changes the tensors of a file as the bug needs them."""
    tensors = load_file(path)
    bug.checkpoint(tensors, None)
    save_file(tensors, path, {"format": "pt"})


def _caught(results: list[runner.Result], wrong: list[runner.Result]) -> str:
    compared = [result for result in results if result.status in (*FAILURES, Status.PASS)]
    if not wrong:
        return f"{NOT_CAUGHT} (of {len(compared)})"
    only = {result.dtype for result in wrong} == {"bfloat16"}
    return f"{len(wrong)} of {len(compared)}{', only in bfloat16' * only}"


def _said(found: list[diagnosis.findings.Finding]) -> tuple[str, str]:
    """Returns where the error begins and what it is, from the first finding."""
    if not found:
        return "", ""
    first = found[0]
    said, *details = (line.strip() for line in first.text.partition(": ")[2].splitlines())
    begins = next((line.removeprefix("where: ") for line in details if line.startswith("where: ")), "")
    names = " or ".join(" and ".join(f"`{id_}`" for id_ in ids) for ids in first.explanations)
    if first.verdict in NAMED:
        return begins, names
    return begins, f"*{first.verdict}*: {said}" if first.verdict in DESCRIBED else f"*{first.verdict}*"


def _practice(bug: field_bugs.Bug, folder: str) -> float:
    """Returns the error of the last logits of a short prompt, on a model as the library initializes it."""
    right = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    clean = field_bugs.model_of(right, None, torch.float32, None)
    tensors = {name: tensor.clone() for name, tensor in clean.state_dict().items()}
    wrong = field_bugs.model_of(transformers.AutoConfig.from_pretrained(folder), tensors, torch.float32, bug)
    token_bt = torch.arange(1, TOKENS + 1)[None].numpy()
    mask_bt = token_bt > 0
    answers = [field_bugs.function_of(model, one)(token_bt, mask_bt) for model, one in ((clean, None), (wrong, bug))]
    return float((answers[0] - answers[1])[:, -1].abs().max())


def thread(entry: Mapping[str, Any]) -> str:
    """Returns the link to the thread of a bug."""
    _, repository, kind, *_, last = entry["thread"].removeprefix("https://github.com/").split("/")
    mark = {"issues": "#", "commit": "@"}.get(kind, ": ")
    return f"[{repository}{mark}{last}]({entry['thread']})"


def row(number: str, entry: Mapping[str, Any], found: Judged) -> str:
    """Returns the row of a bug that was judged."""
    five = f"{'yes' if found.five > ATOL else 'no'}, {found.five:.0e}"
    return f"| {number} | {entry['wrong']} | {thread(entry)} | {found.caught} | {found.begins} | {found.names} | {five} |"


def why(entry: Mapping[str, Any]) -> str:
    """Returns why a bug was not re-created."""
    return str(entry["missing"]) if "missing" in entry else f"as {entry['same']}"


def page(entries: Mapping[str, Mapping[str, Any]], found: Mapping[str, Judged]) -> str:
    """Returns the whole page. found: the results of the bugs that were judged."""
    left = {number: entry for number, entry in entries.items() if number not in found}
    same = sum("same" in entry for entry in left.values())
    caught = [one for one in found.values() if not one.caught.startswith(NOT_CAUGHT)]
    named = sum(one.names.startswith("`") for one in caught)
    described = sum(one.names.startswith(tuple(f"*{verdict}*" for verdict in DESCRIBED)) for one in caught)
    summary = (
        f"The survey has {len(entries)} bugs; {len(left) - same} are not covered and {same} are the same as another one.\n"
        f"Of the other {len(found)}, `check` catches {len(caught)}, `diagnose` names {named} and describes {described}; "
        f"the practice sees {sum(one.five > ATOL for one in found.values())}."
    )
    return "\n".join(
        [
            HEAD.replace("{summary}", summary), TABLE, *(row(number, entries[number], one) for number, one in found.items()), "",
            "## Not re-created", "", "| | bug | thread | why |", "|---|---|---|---|",
            *(f"| {number} | {entry['wrong']} | {thread(entry)} | {why(entry)} |" for number, entry in left.items()), "", NEXT, "",
        ]
    )  # fmt: skip


def main() -> None:
    """Writes the page. Raises KeyError if an entry without `same` and `missing` has no port."""
    folder = Path(sys.argv[1])
    transformers.logging.set_verbosity_error()
    entries, found = tomllib.loads(FIELD.read_text(encoding="utf-8")), {}
    for number, entry in entries.items():
        if "same" not in entry and "missing" not in entry:
            found[number] = Judged(*kept(folder, number, functools.partial(judged, number)))
            print(row(number, entry, found[number]), flush=True)
    write(folder, "docs/field-bugs.md", page(entries, found))


if __name__ == "__main__":
    main()
