"""Judges a port with each of the field's bugs and writes docs/field-bugs.md.

`make evidence STEP=field-bugs` is the command.
"""

import functools
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "ports"))

import field_bugs
import torch
import transformers
from evidence import HOUSE, kept, made_by, write

from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge import diagnosis, runner
from rosettaformer.judge.diagnosis.findings import Verdict
from rosettaformer.judge.status import FAILURES, Status
from rosettaformer.judge.suite.like_folders import cases_of

PORT = str(HOUSE / "tests" / "ports" / "field_bugs.py")
FIELD = HOUSE / "tests" / "support" / "field_bugs.toml"
DTYPES = ("float32", "bfloat16")
LIMIT = 1200.0  # seconds for a diagnosis, on a busy machine, too
TOKENS, ATOL = 5, 1e-2  # of the practice: a short prompt, and a tolerance that somebody chose
NAMED = (Verdict.EXPLAINED, Verdict.INDISTINGUISHABLE, Verdict.FOLLOWS)
SAID = (Verdict.DESCRIBED, Verdict.IMPRECISE)

HEAD = f"""# The field's bugs

{made_by("field-bugs")}
62 mistakes that were made in published ports of modern decoders, collected from their threads. Each that concerns what is modelled here was
made again in the library transformers ({version("transformers")}), on a random model of `rosettaformer new-checkpoint`
([tests/ports/field_bugs.py](../tests/ports/field_bugs.py)):

    FIELD_BUG=20 rosettaformer check tests/ports/field_bugs.py --like qwen3 --dtype float32,bfloat16
    FIELD_BUG=20 rosettaformer diagnose tests/ports/field_bugs.py --like qwen3 --dtype float32,bfloat16

*caught*: the prompts that differ, in float32, or only in bfloat16. *diagnose*: where the error begins, and the mistake by the id that
`rosettaformer explain` knows, or a setting. *five tokens*: the usual practice, the last logits of a prompt of {TOKENS} tokens with an
absolute tolerance of {ATOL:g}, on a model as the library initialises it: the largest difference, and whether it is seen.
"""


class Judged(NamedTuple):
    """What became of a bug. caught: how many comparisons differ, of how many; begins, names: by diagnosis; five: the practice's error."""

    caught: str
    begins: str
    names: str
    five: float


def judged(bug: str) -> Judged:
    """Judges a port with the bug."""
    own = field_bugs.BUGS[bug]
    with tempfile.TemporaryDirectory() as root:
        new.write(own.family, Path(root, "own"), settings=own.settings)
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


def _caught(results: list[runner.Result], wrong: list[runner.Result]) -> str:
    compared = [result for result in results if result.status in (*FAILURES, Status.PASS)]
    if not wrong:
        return f"no (of {len(compared)})"
    only = {result.dtype for result in wrong} == {"bfloat16"}
    return f"{len(wrong)} of {len(compared)}{', only in bfloat16' * only}"


def _said(found: list[diagnosis.findings.Finding]) -> tuple[str, str]:
    """Where the error begins, and what it is, of the first finding."""
    if not found:
        return "", ""
    first = found[0]
    begins, _, said = first.text.partition(": ")[2].partition(": ")
    names = " or ".join(" and ".join(f"`{id_}`" for id_ in ids) for ids in first.explanations)
    if first.verdict in NAMED:
        return begins.partition("\n")[0], names
    return begins.partition("\n")[0], f"*{first.verdict}*: {said.partition(chr(10))[0]}" if first.verdict in SAID else f"*{first.verdict}*"


def _practice(bug: field_bugs.Bug, folder: str) -> float:
    """The error of the last logits of a short prompt, of a model as the library initialises it."""
    right = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    clean = field_bugs.model_of(right, None, torch.float32, None)
    tensors = {name: tensor.clone() for name, tensor in clean.state_dict().items()}
    wrong = field_bugs.model_of(transformers.AutoConfig.from_pretrained(folder), tensors, torch.float32, bug)
    token_bt = torch.arange(1, TOKENS + 1)[None].numpy()
    mask_bt = token_bt > 0
    answers = [field_bugs.function_of(model, one)(token_bt, mask_bt) for model, one in ((clean, None), (wrong, bug))]
    return float((answers[0] - answers[1])[:, -1].abs().max())


def rows(entries: Mapping[str, Mapping[str, Any]], folder: Path) -> Iterator[str]:
    """The row of each bug. Raises KeyError where an entry is neither planted, nor the same as another one, nor said to be missing."""
    for number, entry in entries.items():
        owner, repository, kind, issue = entry["thread"].removeprefix("https://github.com/").split("/")
        thread = f"[{owner}/{repository}{'#' if kind == 'issues' else '@'}{issue}]({entry['thread']})"
        if "same" in entry:
            yield f"| {number} | {entry['wrong']} | {thread} | as {entry['same']} | | | |"
        elif "missing" in entry:
            yield f"| {number} | {entry['wrong']} | {thread} | not covered: {entry['missing']} | | | |"
        else:
            found = Judged(*kept(folder, number, functools.partial(judged, number)))
            five = f"{'seen' if found.five > ATOL else 'not seen'}: {found.five:.0e}"
            yield f"| {number} | {entry['wrong']} | {thread} | {found.caught} | {found.begins} | {found.names} | {five} |"


def page(made: list[str]) -> str:
    """The whole page."""
    own = [row for row in made if "not covered:" not in row and "| as " not in row]
    caught = [row for row in own if "| no (of" not in row]
    named = [row for row in caught if row.split(" | ")[5].startswith("`")]
    said = [row for row in caught if row.split(" | ")[5].startswith(tuple(f"*{verdict}*" for verdict in SAID))]
    seen = [row for row in own if "not seen:" not in row]
    same, missing = sum("| as " in row for row in made), sum("not covered:" in row for row in made)
    summary = (
        f"Of {len(made)}, {missing} are not covered and {same} are the same mistake as another one. Of the other {len(own)}, "
        f"`check --like` catches {len(caught)}, and `diagnose` names {len(named)} of these and describes {len(said)}; the practice "
        f"sees {len(seen)}."
    )
    table = ["| | what was wrong | thread | caught | begins | diagnose | five tokens |", "|---|---|---|---|---|---|---|", *made]
    return "\n".join([HEAD, summary, "", *table, ""])


def main() -> None:
    """Writes the page."""
    folder = Path(sys.argv[1])
    transformers.logging.set_verbosity_error()
    made = []
    for row in rows(tomllib.loads(FIELD.read_text(encoding="utf-8")), folder):
        print(row, flush=True)
        made.append(row)
    write(folder, "docs/field-bugs.md", page(made))


if __name__ == "__main__":
    main()
