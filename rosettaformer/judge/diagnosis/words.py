"""The sentences that diagnosis prints.

A finding starts with a headline. Its cause, place, evidence and fix follow, one per line, indented.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..case import Case
from ..catalogue import Alteration
from .altered import Combination, separates

if TYPE_CHECKING:
    from ..catalogue.sharded import Fault
    from ..result import Result
    from .evidence import Evidence
    from .evidence.crashes import Failed
    from .evidence.near_matches import Nearly

SHOWN = 4  # names listed before "and N more"
ERRORS = 3  # different errors listed
NEAR = 0.05  # share of the error up to which an alteration counts as a near miss
ROUNDING = 2.0**-38  # of the largest value: float64 arithmetic leaves less; float32 numbers leave more (2^-53 to 2^-24)
NOTHING_SHOWS = "no known bug and no setting has any effect on these cases"
CHECK_AGAIN = "check again after the fix: this run left out {}"
FEWER_DIGITS = "some value is computed or stored with fewer digits"
COUNTED = " (padding is not counted)"
ON_ONE_DEVICE = "If the bug also occurs on one device, diagnose the port without --mesh to get its name."


# --- parts of sentences


def listed(names: Sequence[str], shown: int = SHOWN, last: str = " and {} more") -> str:
    """The first names, and how many more there are."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + last.format(more) * (more > 0)


def named(combination: Combination) -> str:
    """The names of alterations that occur together."""
    return " and ".join(one.name for one in combination)


def ids(combination: Combination) -> str:
    """The ids of alterations that occur together."""
    return " and ".join(one.id for one in combination)


def alternatives(found: Sequence[Combination], shown: int = SHOWN) -> str:
    """The names of combinations, one of which applies."""
    return " or ".join(map(named, found[:shown])) + f" or {len(found) - shown} more" * (len(found) > shown)


def lines(first: str, *others: str) -> str:
    """The first line, and the others indented below it; empty ones are dropped."""
    return "\n  ".join([first, *filter(None, others)])


def counted(number: int, what: str = "case") -> str:
    """The number and the noun, in the plural unless the number is 1."""
    return f"{number} {what}{'s' * (number != 1)}"


def _cases(evidence: "Evidence") -> str:
    return "cases that have an output" if evidence.failed else "cases"


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "less than 1%"


# --- a finding


def finding(name: str, text: str, where: str = "", fixes: Sequence[str] = ()) -> str:
    """The text of a finding. name: component or place. where: inputs on which it is wrong."""
    headline, *details = text.splitlines()
    subject = f"{name}: " if name else ""
    return "\n".join([subject + headline, *details, *([f"  where: {where}"] if where else []), *fixes])


def fixes(combination: Combination, framework: str) -> list[str]:
    """The fix of each alteration of a combination."""
    return [_fix(one, framework, f"fix for {one.id}" if len(combination) > 1 else "fix") for one in combination]


def _fix(one: Alteration, framework: str, label: str) -> str:
    """The fix in the port's framework, or where to find it; below it where else the bug may be."""
    own = {one.fix[framework]} if framework in one.fix else {*one.fix.values()}
    text = own.pop().replace("\n", "\n    ") if len(own) == 1 else f"run rosettaformer explain {one.id}"
    return f"  {label}: {text}" + f"\n    If your code already does this, {one.elsewhere}." * bool(one.elsewhere)


# --- explanations


def where(evidence: "Evidence", combination: Combination) -> str:
    """The cases on which the altered reference matches the port."""
    silent, count = evidence.silent(combination), len(evidence.answers)
    if not silent and count == 1:
        return "the only case" + " that has an output" * bool(evidence.failed)
    return f"{count - len(silent)} of {count} {_cases(evidence)}"


def inconclusive(evidence: "Evidence", combination: Combination) -> str:
    """The cases on which a match would mean nothing, and why; empty if there are none."""
    silent = evidence.silent(combination)
    if not silent:
        return ""
    reason = "its rounding error exceeds your error there"
    if any(one.ill_conditioned for one in combination):
        reason = "its output there is pure rounding error"
    elif any(evidence.leaks(combination, index) for index in silent):
        reason = "with this bug, the output there depends on the tokens under padding"
    return f"inconclusive on {listed([evidence.probes[index].id for index in silent])}: {reason}"


def explained(found: Sequence[Combination], place: str, cases: Sequence[Case], *notes: str) -> str:
    """The combinations whose altered reference gives the port's outputs, and which case would tell
    several apart.

    place: the cases that match, from `where`. cases: searched for one that separates the
    combinations. notes: further lines.
    """
    if len(found) == 1:
        return lines(f"matches {_matched(found[0])} on {place}", *_causes(found[0]), *notes)
    family = _family(found)
    common = f"cause: {family}" if family else ""
    names = [named(combination) for combination in found[:SHOWN]] + [f"{len(found) - SHOWN} more"] * (len(found) > SHOWN)
    separated = [_separated(found[0], other, cases) for other in found[1:SHOWN]]
    return lines(f"{len(found)} explanations match equally well on {place}", common, *names, *notes, *separated)


def _matched(combination: Combination) -> str:
    """The injected alterations: known bugs, settings and constants by id, changes by kind."""
    known = tuple(one for one in combination if one.id.isalnum() and one.id.isupper())
    settings = tuple(one for one in combination if one not in known and not one.generated)
    changes = Counter(one.generated for one in combination if one.generated)
    parts = [f"known bug{'s' * (len(known) > 1)} {ids(known)}"] if known else []
    parts += ["the reference with " * (not known) + ids(settings)] if settings else []
    parts += [f"a {kind}" if number == 1 else f"{number} times a {kind}" for kind, number in changes.items()]
    return " and ".join(parts)


def _causes(combination: Combination) -> list[str]:
    """The titles, and the places of alterations that apply at one place."""
    several = len(combination) > 1
    return [
        line
        for one in combination
        for line in (f"cause: {f'{one.id}, ' * several}{one.title}", f"place: {one.place} and nowhere else" if one.place else "")
    ]


def _family(found: Sequence[Combination]) -> str:
    """The family that the differing alterations have in common; empty if they have none."""
    differing = [[one for one in combination if not all(one in other for other in found)] for combination in found]
    families = {one.family for combination in differing for one in combination}
    return families.pop() if len(families) == 1 and all(len(combination) == 1 for combination in differing) else ""


def _separated(first: Combination, second: Combination, cases: Sequence[Case]) -> str:
    case = next((case for case in cases if separates(case, first, second)), None)
    return f"{case.id} would tell {ids(first)} from {ids(second)}" if case else f"no case tells {ids(first)} from {ids(second)}"


def differs_only_at(words: str) -> str:
    """The part of the output that holds every error; empty if there is none."""
    return f"your output differs only at {words}" if words else ""


def told_apart(others: str, case: str, change: str) -> str:
    """Which explanations a further case ruled out."""
    return f"ruled out {others}: {case} was asked again {change}"


def also(found: Sequence[Combination]) -> str:
    """Further explanations that give the same outputs on these cases."""
    return f"also possible on these cases: {alternatives(found)}" if found else ""


def conditional(found: Sequence[Combination], evidence: "Evidence") -> str:
    """Only the failing outputs match; a property separates their cases from the others."""
    count = len(evidence.failing)
    those = f"all {count} failing cases" if count > 1 else "the only failing case"
    head = f"matches {_matched(found[0])} on {those}" if len(found) == 1 else f"{len(found)} explanations match {those}"
    causes = _causes(found[0]) if len(found) == 1 else [named(combination) for combination in found[:SHOWN]]
    return lines(head, *causes, f"fails {evidence.condition}", f"correct on the other {counted(len(evidence.answers) - count)}")


def partly(names: Sequence[Combination], rest: Sequence[Combination], evidence: "Evidence", symptoms: Sequence[str] = ()) -> str:
    """Some outputs match an altered reference and others do not: the port has several code paths.

    names: the alternatives for the first path. rest: what the other outputs match; `names[0]` alone
    if nothing.
    """
    base, count = names[0], len(evidence.answers)
    matching = evidence.explained(base)
    left = [index for index in range(count) if index not in matching]
    failing, right = ([evidence.probes[index].id for index in left if (index in evidence.failing) is value] for value in (True, False))
    share = f"{len(matching)} of {count} {_cases(evidence)}"
    head, causes = f"correct on {share}", list[str]()
    if len(names) > 1:
        head, causes = f"one of {len(names)} explanations matches {share}", [named(combination) for combination in names[:SHOWN]]
    elif base:
        head, causes = f"matches {_matched(base)} on only {share}", _causes(base)
    others = ", ".join((*failing, *right))
    details = [f"{others}: matches {named(combination)}" for combination in rest[:SHOWN]]
    if rest == [base]:
        details = [f"unexplained failures: {', '.join(failing)}"] * bool(failing)
        details += [f"correct although this bug would fail: {', '.join(right)}"] * bool(right)
    return lines(head, *causes, *details, *symptoms)


def imprecise(found: Sequence[Combination], dtype: str) -> str:
    """No error is larger than the loss of precision makes it."""
    return f"errors are no larger than {alternatives(found)} makes them, and too large for {dtype}"


def follows(found: Sequence[Combination]) -> str:
    """The component fails only because of a finding in its parts."""
    return f"follows from {' or '.join(map(ids, found))}, which alone gives this output"


def follows_own(parts: Sequence[str], known: Combination, count: int) -> str:
    """The component follows from unexplained parts. count: the failing cases that show it."""
    besides = f" and {named(known)}" * bool(known)
    return lines(f"follows from {listed(parts)}{besides}",
                 f"the reference with your own parts in it gives your output on {counted(count, 'failing case')}")  # fmt: skip


def nearly(found: "Nearly", evidence: "Evidence") -> str:
    """The output matches except for its last digits."""
    return lines(
        f"matches the reference with {alternatives(found.found)} except for the last digits",
        f"on {found.on} of {counted(len(evidence.failing), 'failing case')}{f', {found.where}' * bool(found.where)}",
        f"at most {found.left:.0e} of the error remains",
        _digits(found.rest),
        f"other failures: {listed(found.others)}" if found.others else "",
    )


# --- descriptions of unexplained outputs


def shapes(relation: str) -> str:
    """How the shape of a whole model's output differs."""
    return f"your output has the wrong shape: {relation}"


def wide(cases: str, dtype: str, got: str, wrong: bool) -> str:
    """The outputs have too wide a dtype. wrong: whether their values are wrong, too."""
    values = "the values are wrong, too" if wrong else "the values are correct"
    return lines(f"your output must be {dtype}; got {got} on {cases}", values)


def first_failure(evidence: "Evidence") -> str:
    """The first failing case and what is wrong with its output."""
    return f"first failure: {evidence.complaint()}"


def described(evidence: "Evidence", symptoms: Sequence[str]) -> str:
    """Symptoms of the outputs, and the first failure."""
    return lines(*symptoms, first_failure(evidence))


def unexplained(evidence: "Evidence", pairs: bool, besides: Sequence[str]) -> str:
    """Nothing explains the outputs; near misses and other observations follow."""
    count = len(evidence.tried)
    text = f"none of the {count} alterations tried gives this output{', nor does any pair of them' * pairs}"
    if count < 2:
        text = "the only alteration with an effect here does not give this output" if count else NOTHING_SHOWS
    nearest = [f"near miss: {one.name} leaves {_share(share)} of the error" for one, share in evidence.nearest(most=NEAR)]
    return lines(text, *besides, *nearest, first_failure(evidence))


def stopped(reason: str, evidence: "Evidence", symptoms: Sequence[str]) -> str:
    """The state of a search that ended early; facts about the output come first."""
    count = len(evidence.tried)
    tried = f"; none of the {count} alterations tried so far gives this output" if count else ""
    return described(evidence, [*symptoms, f"the search ended early: {reason}{tried}"])


def stopped_before(reason: str, complaint: str) -> str:
    """The run ended before all cases were asked."""
    return lines(f"the run ended before all cases were asked: {reason}", f"first failure: {complaint}")


def _digits(rest: float, besides: str = "") -> str:
    """The cause of a float64 error of this share of the largest value."""
    if rest > ROUNDING:
        return f"{FEWER_DIGITS}{besides}"
    return f"the remaining error ({rest:.0e} of the largest value) is rounding slightly above tolerance"


def digits(text: str, rest: float) -> str:
    """A float64 finding of a component that conforms in float32."""
    return lines(text, f"float32 conforms; in float64 {_digits(rest)}")


def only_in_float32(text: str, rest: float) -> str:
    """A float32 finding that float64 does not confirm. rest: the error it leaves there."""
    return lines(text, f"this holds in float32; in float64 {_digits(rest, ' as well, which hides it')}")


def conforms(text: str, dtype: str) -> str:
    """A finding of a component that conforms in this dtype."""
    return lines(text, f"{dtype} conforms")


# --- failures without an output


def fails(failed: "Failed", kinds: Counter[str], first: dict[str, str], answered: int, condition: str) -> str:
    """On how many cases the port raises an error, which errors, and under which condition."""
    errors = [_line(first[kind]) + f" (on {counted(count)})" * (len(kinds) > 1) for kind, count in kinds.most_common(ERRORS)]
    more = f"and {counted(len(kinds) - ERRORS, 'other error')}" if len(kinds) > ERRORS else ""
    on = f"{len(failed)} of {len(failed) + answered} cases" if answered else "every case"
    return lines(f"fails on {on}", *errors, more, condition)


def _line(error: str) -> str:
    """The first line of an error."""
    line, *rest = error.splitlines() or [""]
    return f"{line} (and {len(rest)} more lines)" if rest else line


def crashed(text: str, found: Sequence[Combination]) -> str:
    """The port fails on some cases; the reference with these bugs fails on the same ones."""
    same = f"the reference with {alternatives(found, len(found))} fails on the same cases and matches your output on the others"
    return lines(text, same if found else "")


def silent(text: str) -> str:
    """A whole model fails on every case for the same reason."""
    return lines(text, "all other cases fail for the same reason")


def unstable(found: Sequence[Combination], part: str = "", dropping: bool = False) -> str:
    """Two outputs for the same input differ.

    part: the first module whose outputs differ. dropping: it happens only where a dropout rate is
    not 0.
    """
    cause = "cause: a random operation or state left by an earlier call is active in evaluation mode"
    if dropping:
        cause = "cause: dropout is active in evaluation mode; it happens only where a dropout rate is not 0"
    if found:
        cause = f"cause: {alternatives(found, len(found))}"
    unknown = "" if found or dropping else "no known bug explains the randomness"
    return lines("two evaluations of the same input differ", cause, f"place: {part}, the first module whose outputs differ" * bool(part),
                 unknown)  # fmt: skip


def depends_on_calls(case: str, right: bool) -> str:
    """The output depends on earlier calls."""
    return f"your output depends on the calls before it: {case}, asked first, gives {'the correct' if right else 'another'} output"


# --- where a whole model is wrong


def from_position(position: int, padded: bool) -> str:
    """The first wrong position. padded: padding occurs to the left of some tokens."""
    if position == 0:
        text = "wrong from position 0 on"
    elif position == 1:
        text = "equal at position 0, wrong elsewhere"
    else:
        text = f"equal up to position {position - 1}, wrong from there on"
    return text + COUNTED * padded


def from_id(id_: int) -> str:
    """Every row is wrong from its first token with at least this id on."""
    return f"wrong from the first token with an id of at least {id_} on, equal before it and in rows without one"


def of_id(id_: int) -> str:
    """Every row is wrong from its first token with this id on."""
    return f"wrong from the first token with id {id_} on, equal before it and in rows without one"


def in_rows(id_: int) -> str:
    """A bidirectional model is wrong in the rows that contain this id."""
    return f"wrong in every row with a token of id {id_}, equal in all others"


def only_in(dtype: str, right: Sequence[str]) -> str:
    """The only dtype in which the component fails."""
    return f"only in {dtype} ({' and '.join(right)} {'conforms' if len(right) == 1 else 'conform'})"


# --- where a traced model first diverges


def no_divergence(component: str, traced: int) -> str:
    """No traced component diverges."""
    return f"no divergence: {component} agrees, as do the {traced} components traced inside it"


def diverges(name: str, size: str, alone: bool, dataflow: str) -> str:
    """The component that diverges first. alone: nothing inside it was traced."""
    subject = "fails, and nothing inside it was traced" if alone else "the first component that fails on correct inputs"
    return f"{name}: {subject} ({size}){dataflow}"


def wrong_input(parts: str, child: str, before: str) -> str:
    """A part receives a wrong value although the parts before it are right."""
    return f"\n  {parts}, but {child} receives a wrong input, after {before}"


def wrong_after(parts: str, before: str) -> str:
    """All parts receive the right values; the rest of the component is wrong."""
    return f"\n  {parts} and receive the right inputs; it fails after {before}"


def parts_right(failing: bool, all_compared: bool) -> str:
    """The parts that agree. failing: others fail. all_compared: every part was compared."""
    return f"its {'other ' * failing}parts {'' if all_compared else 'that could be compared '}are right"


def not_guilty(undone: bool) -> str:
    """Why a component that fails is not the cause."""
    reason = "the next step undoes it" if undone else "the component around it agrees"
    return f"not a bug: {reason}, so the port only splits the work differently"


def wrong_gradient(name: str, tensor: str, error: str, between: bool) -> str:
    """The first wrong gradient in backward order. between: those of its parts are right."""
    where = "\n  the gradients of its parts are right, so the bug is between them" if between else ""
    return f"{name}: the first component in backward order with a wrong gradient, {tensor} ({error}){where}"


def no_wrong_gradient(count: int) -> str:
    """No compared gradient is wrong."""
    return f"no divergence in the gradients of {count} components"


def no_gradient(reason: str) -> str:
    """No gradient was compared."""
    return f"no gradient was compared{f' ({reason})' * bool(reason)}"


# --- a port on meshes


def on_mesh(components: Sequence[str], mesh: str, text: str, unasked: int) -> str:
    """The headline of a finding on a mesh. unasked: cases that were not asked any more."""
    others = f" ({counted(unasked, 'more case')} not asked)" * bool(unasked)
    return f"{listed(components, 3)} on {mesh}: {text}{others}"


def matches_on_mesh(ids: Sequence[str], failing: int, right: int) -> str:
    """The faults that give every wrong output on a mesh."""
    count = f"all {failing} failing cases" if failing > 1 else "the only failing case"
    known = f"matches known bug {ids[0]}" if len(ids) == 1 else f"{len(ids)} known bugs match equally well"
    return f"{known} on {count}" + f"; the other {right} are correct" * bool(right)


def fix_on_mesh(fault: "Fault", framework: str) -> str:
    """The fix of a known bug of sharded ports, or where to find it."""
    return f"fix: {fault.fix.get(framework, f'run rosettaformer explain {fault.id}')}"


def no_fault(searched: bool) -> str:
    """No known bug of sharded ports gives the outputs."""
    return "no known bug of sharded ports gives your output" if searched else "the time limit passed before a known bug was found"


# --- progress and next steps


def first(component: str, dtype: str, evidence: "Evidence", failed: "Failed", beyond: int = 0) -> str:
    """On how many cases a component fails. beyond: cases in dtypes that the port does not have."""
    count = len(evidence.failing) + len(failed)
    more = f" ({beyond} more need other dtypes)" * bool(beyond)
    return f"{component} fails on {count} of {len(evidence.answers) + len(failed)} cases in {dtype}{more}"


def fails_first(component: str, dtype: str, complaint: str) -> str:
    """The first failure of a component."""
    return f"{component} fails in {dtype}: {complaint}"


def failed_case(result: "Result") -> str:
    """A failing case that no search has explained."""
    return f"{result.case} {result.status}: {result.message}"


def unexpected_pass(entry: str) -> str:
    """A declared failure that passes."""
    return lines(f"unexpected pass: every case of {entry} passes", "fix: remove the entry from the deviations file")


def shortage(short: str, reason: str) -> str:
    """Too little was compared."""
    return lines(short, reason)


def next_steps(limit: float | None, whole: bool, states: bool) -> list[str]:
    """The next steps after the limit. whole: a whole model. states: hidden states are known."""
    steps = [f"--limit {4 * limit:g} searches longer"] if limit else []
    if whole and not states:
        steps.append("a function `hidden(token_bt, mask_bt)` in the port shows the first layer that differs")
    if whole:
        steps.append("rosettaformer compare transformers:CHECKPOINT FILE.py:MODEL, with the class of your model, compares layer by layer")
    return steps
