"""The sentences that `compare` and `report` print; error messages are where they are raised."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .numbers import number, units

AROUND = 6  # settings of enclosing modules that are listed
SHOWN = 8  # pairs of layers that a note lists
NOTHING, CONVENTION = "nothing was compared", "convention"  # verdicts
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}
Report = Mapping[str, Any]


def sentences(report: Report, verdict: str) -> list[str]:
    """The result, the first difference, and then layers, float64, training and notes.

    Indented lines belong to the line above.
    """
    found = report["first"]
    said = [_headline(report, verdict), *([_first(found, report["variables"])] if found else []), _layers(report), *_in_float64(report)]
    return [*said, *_related(report), *_of_training(report), *(f"note: {note}" for note in report["notes"])]


def _headline(report: Report, verdict: str) -> str:
    worst = max(report["outputs"], key=lambda row: row["units"])
    if verdict == NOTHING:
        return NOTHING + (f": {worst['note']}" if worst.get("note") else "")
    word = "equal in float32" if verdict == "rounding" else verdict
    if worst["verdict"] == "differs":
        return f"{word}: the outputs differ by {units(worst['units'])} times the rounding noise (largest error {worst['error']:.3g})"
    agree = f"{word}: the outputs agree ({units(worst['units'])} times the rounding noise)"
    rows = {"the gradients": report.get("gradients", ())}
    rows |= {f"the variables after one {OPTIMIZERS.get(name, name)} step": step["rows"] for name, step in report.get("steps", {}).items()}
    differ = ["constants of layers"] * bool(report["hidden"])
    differ += [name for name, several in rows.items() if any(row["verdict"] == "differs" for row in several)]
    return agree + (f", but {' and '.join(differ)} differ" if differ else "")


def _layers(report: Report) -> str:
    leaves = [row for row in report["layers"] if row["leaf"]]
    differ = [row for row in leaves if any(one["verdict"] == "differs" for one in row["forced"])]
    if not leaves:
        return "no layer is known on both sides"
    if not differ:
        return f"all {len(leaves)} layers agree on equal inputs"
    if not report["elsewhere"]:
        hidden = "" if any(row["verdict"] == "differs" for row in report["outputs"]) else ", which rounding hides in the outputs"
        return f"{len(differ)} of {len(leaves)} layers {'differs' if len(differ) == 1 else 'differ'} on equal inputs{hidden}"
    example = name(differ[0]["left"], differ[0]["right"])
    example += f" ({'; '.join(differ[0]['settings'])})" if differ[0]["settings"] else ""
    return (
        f"{len(leaves) - len(differ)} of {len(leaves)} layers agree on equal inputs\n"
        f"  the others, such as {example}, have their boundaries elsewhere"
    )


def _related(report: Report) -> Iterator[str]:
    """Relations that hold for several kernels."""
    names: dict[str, list[str]] = {}
    for row in report["variables"]:
        if row.get("relation"):
            names.setdefault(row["relation"]["text"], []).append(row["left"])
    yield from (f"{text}, in {_some(several)}" for text, several in [*names.items()][:SHOWN] if len(several) > 1)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _in_float64(report: Report) -> Iterator[str]:
    """Where outputs that agree in float32 diverge in float64."""
    rounding = [row for row in report["outputs"] if row["verdict"] == "rounding" and not row.get("jumps")]
    if not rounding or any(row["verdict"] == "differs" for row in report["outputs"]):
        return
    found, why = report["float64"], "one side rounds there, or a constant differs in its last digits"
    if all("wide" not in row for row in rounding):
        yield "float64 was not compared: one side cannot run in it"
    elif found and found["layers"]:
        leaves = sum(row["leaf"] for row in report["layers"])
        yield f"in float64, {found['layers']} of {leaves} layers differ, first {name(*found['first'])}\n  {why}"
    elif found:
        yield f"in float64, the first difference is {_place(*found['place'])}\n  {why}"


def name(left: str, right: str) -> str:
    """The name of a layer, with its name on the right if it is another one."""
    return left if left == right or not right else f"{left} (right: {right})"


def _first(found: Mapping[str, Any], variables: Sequence[Mapping[str, Any]]) -> str:
    """The first difference: its place, and its cause below."""
    holders = {row[side].rpartition(".")[0] for row in variables for side in ("left", "right")}
    if found["what"] == "layer":
        which = f", call {found['call'] + 1}" if found["call"] else ""
        first = f"first difference: {name(found['left'], found['right'])}{which}, {units(found['units'])} times the noise on equal inputs"
        causes = [*found["settings"], found["note"], found.get("how", "")]
        also = [f"also different: {', '.join(found['also'][:5])}"] if found["also"] else []
    else:
        first, also = f"first difference: {_place(found['after'], found['before'])}", []
        how = found.get("how")
        lone = [
            f"only on the {which}: {', '.join(names[:5])}"
            for which, several in zip(("left", "right"), found["unmatched"], strict=True)
            if (names := [name for name in several if name in holders or not how])
        ]
        causes = [how, *lone] if how else [*lone, *found["settings"]]
    where = [f"only {' and '.join(found['where'])} differ"] if found.get("where") else []
    around = [f"around it, {text}" for text in found.get("around", ())]
    more = [f"and {len(around) - AROUND} more settings around it"] if len(around) > AROUND else []
    return "\n  ".join([first, *filter(None, causes), *where, *also, *around[:AROUND], *more])


def _place(after: Sequence[str], before: Sequence[str]) -> str:
    """A place between two layers, each named on the left and the right; empty without a layer."""
    first, second = name(*after), name(*before)
    if first and second:
        return f"between {first}, whose output agrees, and {second}, whose input differs"
    if second:
        return f"before {second}, whose input differs"
    return f"after {first}, whose output agrees" if first else "somewhere in the model, since no layer is known on both sides"


def _of_training(report: Report) -> Iterator[str]:
    gradients = report.get("gradients", [])
    if "gradients" in report and not gradients:
        yield "the gradients were not compared: no floating-point input or variable is known on both sides"
    if wrong := [row for row in gradients if row["verdict"] == "differs"]:
        yield f"{len(wrong)} of {len(gradients)} gradients differ, {_worst(wrong)} the most"
    elif gradients:
        yield f"all {len(gradients)} gradients agree{_narrow(gradients)}{_by_convention(gradients)}"
    for optimizer, step in report.get("steps", {}).items():
        optimizer = OPTIMIZERS.get(optimizer, optimizer)
        if why := step.get("not comparable"):
            yield f"the {optimizer} step was not compared: {why}"
        elif not step["rows"]:
            yield f"the {optimizer} step was not compared: no variable is known on both sides"
        else:
            yield _step(optimizer, step["rows"])


def _step(optimizer: str, rows: Sequence[Mapping[str, Any]]) -> str:
    wrong = [row for row in rows if row["verdict"] == "differs"]
    conventions = [row for row in rows if row["verdict"] == CONVENTION]
    found = f"{len(wrong)} of {len(rows)} variables differ, {_worst(wrong)} the most" if wrong else f"all variables agree{_narrow(rows)}"
    notes = {part for row in (*wrong, *conventions) for part in row.get("note", "").split("; ") if part}
    return "\n  ".join([f"after one {optimizer} step, {found}{_by_convention(rows)}", *sorted(notes)])


def _by_convention(rows: Sequence[Mapping[str, Any]]) -> str:
    count = sum(row["verdict"] == CONVENTION for row in rows)
    return f", except {count} that follow another convention" if count else ""


def _narrow(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many rows that agree in float32 agree in float64, too."""
    count = sum(row["verdict"] == "rounding" for row in rows)
    return f" in float32, {len(rows) - count or 'none'} of them in float64" if count else ""


def _worst(rows: Sequence[Mapping[str, Any]]) -> str:
    return str(max(rows, key=lambda row: row["units"])["left"])


def changes(before: str, after: str, found: Report) -> str:
    """The verdict on two reports."""
    counts = ", ".join(f"{len(found[word])} {word}" for word in ("worse", "better", "appeared", "vanished"))
    return f"{'worse' if found['worse'] else 'no worse'}: {counts} ({after} compared with {before})"


def heading(report: Report) -> str:
    """The heading of the table of layers."""
    sides = [f"{side}: {report[side]['side']} ({report[side]['framework']})" for side in ("left", "right")]
    return "\n".join([*sides, "errors in units of rounding noise"])


def different(title: str, shown: int, count: int) -> str:
    """The heading of a table of gradients or variables."""
    return f"{title} that differ" + (f" ({shown} of {count})" if count > shown else "")


TIMING = "time and memory on this machine"

# notes


def fixed(left: Mapping[str, Any], right: Mapping[str, Any]) -> str:
    """A note on config fields that the two ports fix to different values; empty if there are none."""
    others = [f"{one} {left[one]!r} on the left, {right[one]!r} on the right" for one in left if one in right and left[one] != right[one]]
    return f"the ports fix config fields to different values: {'; '.join(others)}" if others else ""


def by_order(pairs: Sequence[str]) -> str:
    return f"matched only by execution order: {_some(pairs)}; --rename can correct it"


def by_value(count: int, total: int) -> str:
    return f"matched by value: {count} of {total} variables have equal values on both sides"


def fused(side: str, path: str, names: Sequence[str]) -> str:
    return f"{path} on the {side} combines {', '.join(names)}"


def flattened(left: str, right: str) -> str:
    return f"{name(left, right)}: both sides flatten its input in the same order, and its kernel accordingly"


def headless(with_head: str, without: str, end: str) -> str:
    return f"only the {with_head} has a head; its hidden states after {end} are compared with the {without}, without gradients and steps"


def jumps(count: int) -> str:
    return f"near ties, such as a router's, decide {count} numbers of the output; rounding decides these, so no training is compared"


def channels(side: str) -> str:
    return f"the output of the {side} has channels first; it is compared with channels last"


def spare_outputs(side: str, shapes: Sequence[str]) -> str:
    return f"not compared: outputs only on the {side}, of shapes {', '.join(shapes)}"


def no_float64(side: str, why: str) -> str:
    return f"{side} has no float64: {why}"


def ignored(side: str, inputs: Sequence[str]) -> str:
    return f"the {side} does not accept {', '.join(inputs)}"


def zero(names: Sequence[str], other: str, why: str) -> str:
    several = f"{names[0]} and {len(names) - 1} more are" if len(names) > 1 else f"{names[0]} is"
    return f"{several} set to zero, without a partner on the {other}: {why}"


# report

COUNTS = {3: "three", 4: "four", 5: "five"}


def predictions(found: Any) -> str:
    """Whether all implementations make the same choices (`one_model.predictions.Predictions`)."""
    if not found.choices:
        return f"The model is a regression, without choices; the largest error is {number(found.error)}."
    size = f"The smallest margin between the first two logits is {number(found.margin)}, the largest error {number(found.error)}."
    if found.flips:
        beyond = sum(not flip.explained for flip in found.flips)
        how = f"{beyond} of them by more than rounding explains" if beyond else "each within what rounding explains"
        return f"{len(found.flips)} of {found.choices * len(found.found)} choices flip, {how}. {size}"
    could = f", but {found.close} of {found.choices} could flip within the error" if found.close else ""
    return f"{_agreement(found)}{could}. {size}"


def _agreement(found: Any) -> str:
    count = len(found.found)
    who = f"All {COUNTS.get(count, count)} predict" if count > 2 else "Both predict" if count == 2 else "The implementation predicts"
    of = "" if count > 1 else " as the reference"
    if found.component == "classify":
        return f"{who} the same label{of}" if found.choices == 1 else f"{who} the same answer for all {found.choices} labels{of}"
    what = "next token" if found.component == "transformer" else "token"
    return f"{who} the same {what} at {f'all {found.choices} positions' if found.choices > 1 else 'the only position'}{of}"


def verdict(conforms: bool, checked: bool, model: str, names: Sequence[str], lacking: Sequence[str]) -> str:
    """The headline of a report.

    checked: whether cases were run. names: implementations that conform, or that differ.
    """
    verb = ("conform" if checked else "run") if conforms else "differ"
    subject = listed(names) or ("No implementation" if conforms else "The run")
    absent = f" ({listed(lacking)} missing)" if lacking else ""
    return f"{subject} {verb}{'s' * (len(names) < 2)} on {model}{absent}"


def conformance(compared: int, dtype: str, components: Sequence[str], names: Sequence[str], worst: str, left: int) -> str:
    """The paragraph that replaces a results table of one dtype in which everything conforms."""
    skipped = f" {left} are not compared." if left else ""
    return (
        f"All {compared} outputs conform in {dtype}: {listed(components)} of {listed(names)}, on random tokens, with and without padding. "
        f"{worst}{skipped}"
    )


def worst(ratio: float, factor: float, where: str = "") -> str:
    at = f", in {where}" if where else ""
    return f"The largest passing error is {ratio:.2f} times NumPy's rounding error{at}; up to {factor:g} passes."


def outputs(compared: int, failed: int) -> str:
    return f"{compared} outputs compared, {failed} failed."


def layer_outputs(within: int, total: int) -> str:
    return f"{within} of {total} layer outputs are within rounding error."


def training(steps: int, largest: float) -> str:
    return f"Loss and gradient of {steps} training steps are within {number(largest)} times the noise."


def listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)
