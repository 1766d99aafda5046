"""Writes the report of a comparison: its verdict, its sentences, and its tables on a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..findings.training_rows import CONVENTION
from ..numbers import units

COLOURS = {
    "equal": "green", "rounding": "yellow", "differs": "red", "not comparable": "dim",
    CONVENTION: "yellow", "nothing was compared": "red",
}  # fmt: skip
AROUND = 6  # settings of what holds a place that are shown
SHOWN = 12  # rows of gradients and of a step that differ
Report = Mapping[str, Any]


NOTHING = "nothing was compared"


def verdict(report: Report) -> str:
    """Returns `equal`, `rounding` or `differs`: the worst of outputs, gradients and steps; or `nothing was compared`.

    What layers give within counts only where a constant of theirs differs, which rounding hides in
    the outputs.
    """
    steps = [row for step in report.get("steps", {}).values() for row in step["rows"]]
    found = {row["verdict"] for row in (*report["outputs"], *report.get("gradients", ()), *steps)}
    found |= {"differs"} if report["hidden"] else set()
    return next((word for word in ("differs", "rounding", "equal") if word in found), NOTHING)


def sentences(report: Report) -> list[str]:
    """Returns the sentences of a report, the result first."""
    found = report["first"]
    said = [_headline(report), *_in_float64(report)]
    if found:
        said.append(_layer(found) if found["what"] == "layer" else _between(found))
        if around := found.get("around"):
            more = f" and {len(around) - AROUND} more" if len(around) > AROUND else ""
            said.append(f"around it differ: {'; '.join(around[:AROUND])}{more}")
    said += _of_training(report)
    return said + [f"note: {note}" for note in report["notes"]]


def _headline(report: Report) -> str:
    worst = max(report["outputs"], key=lambda row: row["units"])
    leaves = [row for row in report["layers"] if row["leaf"]]
    differ = [row for row in leaves if any(one["verdict"] == "differs" for one in row["forced"])]
    word = verdict(report)
    word = "equal in float32" if word == "rounding" else word
    if worst["verdict"] == "differs":
        outputs = f"{word}: the output differs by {units(worst['units'])} times the rounding noise ({worst['error']:.3g})"
    else:
        outputs = f"{word}: the outputs agree to rounding ({units(worst['units'])} of the noise)"
    if differ and report["elsewhere"]:
        same = len(leaves) - len(differ)
        other = _name(differ[0]["left"], differ[0]["right"])
        other += f" ({'; '.join(differ[0]['settings'])})" if differ[0]["settings"] else ""
        alike = f"{same} of {len(leaves)} layers give the same for the same input"
        return f"{outputs}, and {alike}; of the others, such as {other}, the boundary lies elsewhere"
    if differ:
        hides = "which hides that" if worst["verdict"] != "differs" else "and"
        return f"{outputs}, {hides} {len(differ)} of {len(leaves)} layers give something else for the same input"
    layers = f"and each of {len(leaves)} layers gives the same for the same input" if leaves else "and no layer is known on both sides"
    return f"{outputs}, {layers}"


def _in_float64(report: Report) -> Iterator[str]:
    """Yields where float64 parts, of outputs that agree in float32 only."""
    rounding = [row for row in report["outputs"] if row["verdict"] == "rounding"]
    if not rounding or any(row["verdict"] == "differs" for row in report["outputs"]):
        return
    found = report["float64"]
    if all("wide" not in row for row in rounding):
        yield "in float64: not compared, since a side has no float64"
    elif found and found["layers"]:
        leaves = sum(row["leaf"] for row in report["layers"])
        yield (
            f"in float64: first apart in {_name(*found['first'])}, which rounds within or has a constant that differs in its last digits; "
            f"so do {found['layers']} of {leaves} layers"
        )
    elif found:
        yield f"in float64: first apart {_place(*found['place'])}, where a side rounds or has a constant that differs in its last digits"


def _name(left: str, right: str) -> str:
    return left if left == right or not right else f"{left} (right: {right})"


def _layer(found: Mapping[str, Any]) -> str:
    which = f", call {found['call'] + 1}," if found["call"] else ""
    text = (
        f"first: {_name(found['left'], found['right'])}{which} differs by {units(found['units'])} times the noise although its inputs agree"
    )
    text += f": {'; '.join(found['settings'])}" if found["settings"] else ""
    text += f" ({found['note']})" if found["note"] else ""
    text += f"; {found['how']}" if found.get("how") else ""
    text += _only(found)
    return text + (f"; so do {', '.join(found['also'][:5])}" if found["also"] else "")


def _between(found: Mapping[str, Any]) -> str:
    text = f"first: {_place(found['after'], found['before'])}"
    said = [
        f"{which} has {', '.join(names[:5])} alone"
        for which, names in zip(("the left", "the right"), found["unmatched"], strict=True)
        if names
    ]
    if found.get("how"):
        return f"{text}: {found['how']}{_only(found)}"
    return "; ".join([text, *said, *found["settings"]]) + _only(found)


def _place(after: Sequence[str], before: Sequence[str]) -> str:
    """Says between which layers, each with its names on the left and on the right; empty where there is none."""
    first, second = _name(*after), _name(*before)
    if first and second:
        return f"between {first}, whose output agrees, and {second}, whose inputs differ"
    if second:
        return f"before {second}, whose inputs differ"
    return f"after {first}, whose output agrees" if first else "somewhere in the whole, none of whose layers is known on both sides"


def _only(found: Mapping[str, Any]) -> str:
    """Says where it differs, if not everywhere; an earlier report does not say so."""
    return f"; only {' and '.join(found['where'])} differ" if found.get("where") else ""


def _of_training(report: Report) -> Iterator[str]:
    gradients = report.get("gradients", [])
    if "gradients" in report and not gradients:
        yield "gradients: not compared, since no input that floats and no variable of the one side is known on the other"
    if wrong := [row for row in gradients if row["verdict"] == "differs"]:
        yield f"gradients: {len(wrong)} of {len(gradients)} differ, {_worst(wrong)} most"
    elif gradients:
        yield f"gradients: all {len(gradients)} agree to rounding{_narrow(gradients)}{_by_convention(gradients)}"
    for name, step in report.get("steps", {}).items():
        if why := step.get("not comparable"):
            yield f"a step of {name} is not comparable: {why}"
            continue
        if not step["rows"]:
            yield f"a step of {name}: not compared, since no variable of the one side is known on the other"
            continue
        wrong = [row for row in step["rows"] if row["verdict"] == "differs"]
        conventions = [row for row in step["rows"] if row["verdict"] == CONVENTION]
        text = (
            f"{len(wrong)} of {len(step['rows'])} variables differ, {_worst(wrong)} most"
            if wrong
            else f"the variables agree to rounding{_narrow(step['rows'])}"
        )
        notes = {part for row in (*wrong, *conventions) for part in row.get("note", "").split("; ") if part}
        text += _by_convention(step["rows"])
        yield f"a step of {name}: {text}" + (f" ({'; '.join(sorted(notes))})" if notes else "")


def _by_convention(rows: Sequence[Mapping[str, Any]]) -> str:
    count = sum(row["verdict"] == CONVENTION for row in rows)
    return f", but for {count} by a convention of the frameworks" if count else ""


def _narrow(rows: Sequence[Mapping[str, Any]]) -> str:
    """Says of how many rows float64 differs."""
    count = sum(row["verdict"] == "rounding" for row in rows)
    return f" in float32, {len(rows) - count} of them in float64 too" if count else ""


def _worst(rows: Sequence[Mapping[str, Any]]) -> str:
    return str(max(rows, key=lambda row: row["units"])["left"])


def render(console: Console, report: Report, quiet: bool) -> None:
    """The verdict and its sentences; unless quiet the tables first."""
    if not quiet:
        console.print(_layers(report))
        for title, rows in _others(report):
            if rows:
                console.print(_plain(title, rows))
        if report.get("timing"):
            console.print(_timing(report))
    colour = COLOURS[verdict(report)]
    for number, text in enumerate(sentences(report)):
        console.print(f"[{colour}]{escape(text)}[/]" if number == 0 else escape(text), highlight=False, soft_wrap=True)


def render_changes(console: Console, found: Report, title: str, quiet: bool) -> None:
    """What `versus` has found between two reports; unless quiet every row that changed first."""
    for word, colour in (("worse", "red"), ("better", "green")):
        for row in found[word] if not quiet else ():
            numbers = " -> ".join(f"{row[when]['verdict']} {units(row[when]['units'])}" for when in ("before", "after"))
            console.print(f"[{colour}]{word}[/] {escape(row['name'])}: {numbers}", highlight=False, soft_wrap=True)
    for word in ("appeared", "vanished"):
        for name in found[word] if not quiet else ():
            console.print(f"[yellow]{word}[/] {escape(name)}", highlight=False, soft_wrap=True)
    counts = ", ".join(f"{len(found[word])} {word}" for word in ("worse", "better", "appeared", "vanished"))
    console.print(f"{title}: {counts}", highlight=False, soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        text = column in ("left", "right", "shape", "verdict", "kind", "what")
        table.add_column(column, justify="left" if text else "right", overflow="fold")
    return table


def _layers(report: Report) -> Table:
    sides = " and ".join(f"{report[side]['side']} ({report[side]['framework']})" for side in ("left", "right"))
    table = _table(
        f"{sides}; errors in units of rounding noise", "left", "right", "shape", "as run", "left's input", "right's input", "verdict"
    )
    for row in report["layers"]:
        forced = [units(one["units"]) if one["verdict"] != "not comparable" else "-" for one in row["forced"]]
        name = row["left"] + (f" #{row['call'] + 1}" if row["call"] else "")
        free = units(row["free"]["units"]) if row["free"]["verdict"] != "not comparable" else "-"
        cells = name, row["right"], " ".join(map(str, row["shape"])), free, *[*forced, "", ""][:2], row["verdict"]
        table.add_row(*map(escape, cells[:-1]), f"[{COLOURS[row['verdict']]}]{row['verdict']}[/]", style=None if row["leaf"] else "dim")
    for number, output in enumerate(report["outputs"]):
        name = "output" if len(report["outputs"]) == 1 else f"output {number + 1}"
        table.add_row(name, name, "", units(output["units"]), "", "", f"[{COLOURS[output['verdict']]}]{output['verdict']}[/]")
    return table


def _others(report: Report) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    named = {"gradients": report.get("gradients", [])}
    named |= {f"variables after a step of {name}": step["rows"] for name, step in report.get("steps", {}).items()}
    for title, rows in named.items():
        yield title, [row for row in rows if row["verdict"] in ("differs", CONVENTION)]


def _plain(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    more = f", {SHOWN} of {len(rows)}" if len(rows) > SHOWN else ""
    table = _table(f"{title} that are not equal{more}", "left", "right", "error", "verdict")
    for row in rows[:SHOWN]:
        table.add_row(escape(row["left"]), escape(row["right"]), units(row["units"]), f"[{COLOURS[row['verdict']]}]{row['verdict']}[/]")
    return table


def _timing(report: Report) -> Table:
    table = _table("time and memory, measured on this machine", "what", "left ms", "right ms", "left first ms", "right first ms",
                   "left peak MiB", "right peak MiB")  # fmt: skip
    for row in report["timing"]:
        cells = []
        for key, form in (("median_ms", ".3g"), ("first_ms", ".4g"), ("peak_mib", ".3g")):
            cells += [
                "failed" if "failed" in side else format(side[key], form) if side.get(key) is not None else "" for side in row["sides"]
            ]
        table.add_row(f"{row['what']}, {row['mode']}", *cells)
    return table
