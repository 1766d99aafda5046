"""What diagnosis says, in words."""

from collections.abc import Sequence

from ..case import Case
from ..catalogue import Alteration
from .altered import Combination, separates
from .evidence import Evidence
from .evidence.crashes import Failed
from .evidence.near_matches import ROUNDING, Nearly
from .findings import Verdict
from .words import SHOWN, ids, listed, named

NEAR = 0.05  # of the error: what leaves more is not near
NOTHING_SHOWS = "the catalogue has no defect and no setting that shows here"


def crashed(sentence: str, found: Sequence[Combination]) -> str:
    """The port has no answer to some cases, and the defects with which the reference has none to the same ones."""
    same = f"\n  the reference with {alternatives(found, len(found))} fails on the same cases and equals your output on the others"
    return sentence + same * bool(found)


def where(evidence: Evidence, combination: Combination) -> str:
    """On which cases the altered reference was seen to equal the port's answers."""
    silent, count = [evidence.probes[index].id for index in evidence.silent(combination)], len(evidence.answers)
    if not silent and count == 1:
        return "the one case" + " that has an answer" * bool(evidence.failed)
    equal = f"{count - len(silent)} of {count} {_cases(evidence)}"
    if not silent:
        return equal
    noise = any(one.undetermined for one in combination)
    reason = "its own answer is rounding alone, or hidden by it," if noise else "it rounds more than you err"
    return f"{equal}; {reason} on {listed(silent)}"


def explained(found: Sequence[Combination], place: str, cases: Sequence[Case], only: str = "") -> str:
    """The combinations whose altered reference equals the port's answers, what they have in common, and what would tell them apart.

    place: the cases, as `where` says it. cases: among which a separating one is sought. only: the part of the output that differs.
    """
    if len(found) == 1:
        return _matches(found[0], place)
    common = "; ".join(filter(None, (_common(found), f"your output differs only at {only}" * bool(only))))
    same = f"matches {alternatives(found)} on {place}, which do not tell them apart"
    others = [f"  {_separated(found[0], other, cases)}" for other in found[1:SHOWN]]
    return "\n".join([": ".join(filter(None, (common, same))), *others])


def _matches(combination: Combination, place: str) -> str:
    """The ids of what was injected, on which cases the answers are equal, and the titles."""
    known = f"known bug{'s' * (len(combination) > 1)} " * all(one.id.isalnum() and one.id.isupper() for one in combination)
    titles = "; ".join(one.title + f", in {one.place} alone" * bool(one.place) for one in combination)
    return f"matches {known}{ids(combination)} on {place}: {titles}"


def alternatives(found: Sequence[Combination], shown: int = SHOWN) -> str:
    """The names of combinations of which one is meant."""
    return " or ".join(map(named, found[:shown])) + f" or {len(found) - shown} more" * (len(found) > shown)


def _common(found: Sequence[Combination]) -> str:
    """What is computed with each of these: of those that are not in all of them the family."""
    differing = [[one for one in combination if not all(one in other for other in found)] for combination in found]
    families = {one.family for combination in differing for one in combination}
    return families.pop() if len(families) == 1 and all(len(combination) == 1 for combination in differing) else ""


def _separated(first: Combination, second: Combination, cases: Sequence[Case]) -> str:
    case = next((case for case in cases if separates(case, first, second)), None)
    return f"{case.id if case else 'no case of the suite'} {'would tell' if case else 'tells'} {ids(first)} from {ids(second)}"


def conditional(found: Sequence[Combination], evidence: Evidence) -> tuple[Verdict, str]:
    """The verdict and the text where the answers that fail, and no others, equal an altered reference."""
    count, right = len(evidence.failing), len(evidence.answers) - len(evidence.failing)
    those = f"all {count} of these cases" if count > 1 else "the one such case"
    text = f"{evidence.condition}: your output equals the reference with {alternatives(found)}, on {those}"
    return Verdict.EXPLAINED if len(found) == 1 else Verdict.INDISTINGUISHABLE, f"{text}; it is right on the other {right}"


def partly(names: Sequence[Combination], rest: Sequence[Combination], evidence: Evidence, symptoms: Sequence[str] = ()) -> str:
    """Some answers equal the reference with some alterations, one of these, the others do not: different paths of the port do different
    things."""
    base, count = names[0], len(evidence.answers)
    explained = evidence.explained(base)
    left = [index for index in range(count) if index not in explained]
    failing, right = ([evidence.probes[index].id for index in left if (index in evidence.failing) is value] for value in (True, False))
    altered = f"the reference with {alternatives(names)}" if base else "the reference"
    same = f"your output equals {altered} on {len(explained)} of {count} {_cases(evidence)}"
    others = ", ".join((*failing, *right))
    lines = [f"on {others} it equals the reference with {named(combination)}" for combination in rest[:SHOWN]]
    if rest == [base]:
        lines = [f"unexplained remain {', '.join(failing)}, which your port fails"] * bool(failing)
        lines += [f"your port is right on {', '.join(right)}, where that would fail"] * bool(right)
    return _lines(same, *lines, *symptoms)


def imprecise(found: Sequence[Combination], dtype: str) -> str:
    """No error is larger than a loss of digits makes, which is no equality."""
    return f"every error is within what {alternatives(found)} {'makes' if len(found) == 1 else 'make'}, and beyond {dtype}'s"


def follows(found: Sequence[Combination]) -> str:
    """The component fails because of a finding on its parts."""
    return f"follows from {' or '.join(map(ids, found))}: your output equals the reference with that alone"


def first(component: str, dtype: str, evidence: Evidence, failed: Failed, beyond: int = 0) -> str:
    """On how many cases a component fails, and how the first one does. beyond: the number of cases in dtypes that the port has not."""
    count = len(evidence.failing) + len(failed)
    seen = evidence.complaint() if evidence.failing else failed[0][1].partition("\n")[0]
    more = f" ({beyond} more are asked in other dtypes than it has)" * bool(beyond)
    return f"{component} fails on {count} of {len(evidence.answers) + len(failed)} cases in {dtype}{more}; the first: {seen}"


def nearly(found: Nearly, evidence: Evidence) -> str:
    """The output but for its last digits."""
    text = f"your output is the reference with {alternatives(found.found)} but for at most {found.left:.0e} of the error"
    where = f"{found.where}: " * bool(found.where)
    besides = [f"it differs besides on {listed(found.others)}"] * bool(found.others)
    return _lines(f"{where}{text}, on {found.on} of the {len(evidence.failing)} cases that fail", _digits(found.rest), *besides)


def wide(cases: str, dtype: str, got: str, wrong: bool) -> str:
    """The outputs have a wider dtype than they must have. wrong: whether their values are wrong, too."""
    return f"your output must be {dtype}; got {got}, on {cases}: " + ("the values are wrong, too" if wrong else "the values are right")


def described(evidence: Evidence, symptoms: Sequence[str]) -> str:
    """What the answers are in terms of the reference, where no alteration gives them."""
    return _lines(*symptoms, f"first seen: {evidence.complaint()}")


def digits(text: str, rest: float) -> str:
    """What is said of a component that nothing explains in float64, and that conforms in float32."""
    return f"{text}\n  float32 conforms: in float64 {_digits(rest)}"


def only_in_float32(text: str, rest: float) -> str:
    """What is said of a component that is explained in float32, and in float64 not. rest: what the explanation leaves there."""
    return f"{text}\n  that is in float32; in float64 {_digits(rest, ' besides, which hides it')}"


def _digits(rest: float, besides: str = "") -> str:
    """The cause of a float64 error that is this share of the largest value."""
    if rest > ROUNDING:
        return f"something is computed or stored with fewer digits{besides}"
    return f"what is left, {rest:.0e} of the largest value, is rounding beyond what is allowed"


def stopped(reason: str, evidence: Evidence, symptoms: Sequence[str]) -> str:
    """What was known when the search ended early: what is true of the output comes first."""
    text = f"{reason}, before the search ended"
    if evidence.tried:
        text += f"; {len(evidence.tried)} alterations were tried alone, and none of them gives this output"
    return described(evidence, [*symptoms, text])


def follows_own(parts: Sequence[str], known: Combination, count: int) -> str:
    """The component fails because of parts that nothing explains, as seen on `count` of the cases that fail."""
    besides = f" and {named(known)}" * bool(known)
    own = "your output equals the reference with your own parts there"
    return f"follows from {listed(parts)}{besides}: {own}, on {count} of the cases that fail"


def unexplained(evidence: Evidence, pairs: bool, besides: Sequence[str]) -> str:
    """Nothing explains the answers; the hypotheses that come near, with the share of the error that they leave, and what else was seen."""
    count = len(evidence.tried)
    text = f"none of {count} alterations{', nor two together,' * pairs} gives this output"
    if count < 2:
        text = "the one alteration that shows here does not give this output" if count else NOTHING_SHOWS
    if nearest := [(one, share) for one, share in evidence.nearest() if share <= NEAR]:
        text += "; the nearest: " + ", ".join(f"{one.name} leaves {_share(share)} of the error" for one, share in nearest)
    return _lines(text, f"first seen: {evidence.complaint()}", *(f"besides: {sentence}" for sentence in besides))


def _lines(first: str, *others: str) -> str:
    return "\n  ".join([first, *others])


def unstable(found: Sequence[Combination], part: str = "", dropping: bool = False) -> str:
    """The port answers the same input differently. part: the first of its parts that does. dropping: only where a rate of dropout is not
    0, which it is on other cases."""
    text = "two evaluations of the same input differ: something random, or what the first one left behind, is active in evaluation mode"
    text += f"; the first part to differ on equal inputs is {part}" * bool(part)
    if dropping:
        text += "; it is so only where a rate of dropout is not 0: dropout is active in evaluation"
    if found:
        return f"{text}, as with {alternatives(found, len(found))}"
    return text if dropping else f"{text}; no defect of the catalogue makes exactly these cases random, and by more than rounding"


def fix(one: Alteration, framework: str) -> str:
    """The fix of a defect in the framework; without one, where the frameworks' fixes are. Below it where else the mistake may be."""
    fixes = {one.fix[framework]} if framework in one.fix else {*one.fix.values()}
    text = fixes.pop().replace("\n", "\n    ") if len(fixes) == 1 else f"rosettaformer explain {one.id}"
    return f"  fix of {one.id}: {text}" + f"\n    If your code already does this, {one.elsewhere}." * bool(one.elsewhere)


def next_steps(limit: float | None, whole: bool, states: bool) -> list[str]:
    """What to do after a search that the limit stopped. whole: the port is that of a whole model. states: it gave its hidden states."""
    steps = [f"--limit {4 * limit:g} searches longer"] if limit else []
    if whole and not states:
        steps.append("a function `hidden(token_bt, mask_bt)` in the port shows the first layer that differs")
    if whole:
        steps.append("rosettaformer compare transformers:DIR OTHER compares two models layer by layer")
    return steps


def _cases(evidence: Evidence) -> str:
    return "cases that have an answer" if evidence.failed else "cases"


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "less than 1%"
