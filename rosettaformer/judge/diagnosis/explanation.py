"""What diagnosis says, in words."""

from collections.abc import Sequence

from ..case import Case
from ..catalogue import Alteration
from .altered import Combination, separates
from .beginning import Failed
from .digits import ROUNDING, Nearly
from .findings import Verdict
from .search import Search

SHOWN = 4
NEAR = 0.05  # of the error: what leaves more is not near


def crashed(sentence: str, found: Sequence[Combination]) -> str:
    """The port has no answer to some cases, and the defects with which the reference has none to the same ones."""
    names = " or ".join(map(_named, found))
    return sentence + f"\n  the reference with {names} fails on the same cases and equals your output on the others" * bool(found)


def where(search: Search, combination: Combination) -> str:
    """On which cases the altered reference was seen to equal the port's answers."""
    silent = [search.hypotheses.probes[index].id for index in search.silent(combination)]
    if not silent:
        return (
            f"{len(search.answers)} of {len(search.answers)} {_cases(search)}"
            if len(search.answers) > 1
            else "the one case" + " that has an answer" * bool(search.failed)
        )
    noise = any(one.undetermined for one in combination)
    reason = "its own answer is rounding alone, or hidden by it," if noise else "it rounds more than you err"
    rest = ", ".join(silent[:SHOWN]) + (f" and {len(silent) - SHOWN} more" if len(silent) > SHOWN else "")
    return f"{len(search.answers) - len(silent)} of {len(search.answers)} {_cases(search)}; {reason} on {rest}"


def explained(found: Sequence[Combination], place: str, cases: Sequence[Case], only: str = "") -> str:
    """The combinations whose altered reference equals the port's answers, what they have in common, and what would tell them apart.

    place: the cases, as `where` says it. cases: among which a separating one is sought. only: the part of the output that differs.
    """
    if len(found) == 1:
        return _matches(found[0], place)
    same = f"matches {alternatives(found)} on {place}"
    common = _common(found) + f"; your output differs only at {only}" * bool(only)
    others = [f"  {_separated(found[0], other, cases)}" for other in found[1:SHOWN]]
    return "\n".join([": ".join(filter(None, (common.removeprefix("; "), f"{same}, which do not tell them apart"))), *others])


def _matches(combination: Combination, place: str) -> str:
    """The ids of what was injected, on which cases the answers are equal, and the titles."""
    known = f"known bug{'s' * (len(combination) > 1)} " * all(one.id.isalnum() and one.id.isupper() for one in combination)
    titles = "; ".join(one.title + f", in {one.place} alone" * bool(one.place) for one in combination)
    return f"matches {known}{' and '.join(one.id for one in combination)} on {place}: {titles}"


def alternatives(found: Sequence[Combination]) -> str:
    """The names of combinations of which one is meant."""
    names = " or ".join(map(_named, found[:SHOWN]))
    return names + f" or {len(found) - SHOWN} more" * (len(found) > SHOWN)


def _common(found: Sequence[Combination]) -> str:
    """What is computed with each of these: of those that are not in all of them the family."""
    differing = [[one for one in combination if not all(one in other for other in found)] for combination in found]
    families = {one.family for combination in differing for one in combination}
    return families.pop() if len(families) == 1 and all(len(combination) == 1 for combination in differing) else ""


def conditional(found: Sequence[Combination], search: Search) -> tuple[Verdict, str]:
    """The verdict and the text where the answers that fail, and no others, equal an altered reference."""
    count, right = len(search.failing), len(search.answers) - len(search.failing)
    those = f"all {count} of these cases" if count > 1 else "the one such case"
    text = f"{search.condition}: your output equals the reference with {alternatives(found)}, on {those}"
    return Verdict.EXPLAINED if len(found) == 1 else Verdict.INDISTINGUISHABLE, f"{text}; it is right on the other {right}"


def partly(names: Sequence[Combination], rest: Sequence[Combination], search: Search, symptoms: Sequence[str] = ()) -> str:
    """Some answers equal the reference with some alterations, one of these, the others do not: different paths of the port do different
    things."""
    base, probes = names[0], search.hypotheses.probes
    explained = search.explained(base)
    failing, right = ([index for index in range(len(probes)) if index not in explained and (index in search.failing) is value]
                      for value in (True, False))  # fmt: skip
    others = ", ".join(probes[index].id for index in (*failing, *right))
    altered = f"the reference with {alternatives(names)}" if base else "the reference"
    same = f"your output equals {altered} on {len(explained)} of {len(probes)} {_cases(search)}"
    lines = [f"  on {others} it equals the reference with {_named(combination)}" for combination in rest[:SHOWN]]
    if rest == [base]:
        lines = [f"  unexplained remain {_listed(failing, search)}, which your port fails"] * bool(failing)
        lines += [f"  your port is right on {_listed(right, search)}, where that would fail"] * bool(right)
    return "\n".join([same, *lines, *_indented(symptoms)])


def _listed(indices: Sequence[int], search: Search) -> str:
    return ", ".join(search.hypotheses.probes[index].id for index in indices)


def imprecise(found: Sequence[Combination], dtype: str) -> str:
    """No error is larger than a loss of digits makes, which is no equality."""
    return f"every error is within what {alternatives(found)} {'makes' if len(found) == 1 else 'make'}, and beyond {dtype}'s"


def follows(found: Sequence[Combination]) -> str:
    """The component fails because of a finding on its parts."""
    names = " or ".join(" and ".join(one.id for one in combination) for combination in found)
    return f"follows from {names}: your output equals the reference with that alone"


def first(component: str, dtype: str, search: Search, failed: Failed, beyond: int = 0) -> str:
    """On how many cases a component fails, and how the first one does. beyond: the number of cases in dtypes that the port has not."""
    count = len(search.failing) + len(failed)
    seen = search.complaint() if search.failing else failed[0][1].partition("\n")[0]
    more = f" ({beyond} more are asked in other dtypes than it has)" * bool(beyond)
    return f"{component} fails on {count} of {len(search.answers) + len(failed)} cases in {dtype}{more}; the first: {seen}"


def nearly(found: Nearly, search: Search) -> str:
    """The output but for its last digits."""
    text = f"your output is the reference with {alternatives(found.found)} but for at most {found.left:.0e} of the error"
    where = f"{found.where}: " * bool(found.where)
    others = ", ".join(found.others[:SHOWN]) + f" and {len(found.others) - SHOWN} more" * (len(found.others) > SHOWN)
    lines = [f"{where}{text}, on {found.on} of the {len(search.failing)} cases that fail", f"  {_digits(found.rest)}"]
    return "\n".join([*lines, *([f"  it differs besides on {others}"] if found.others else [])])


def wide(cases: str, dtype: str, got: str, wrong: bool) -> str:
    """The outputs have a wider dtype than they must have. wrong: whether their values are wrong, too."""
    return f"your output must be {dtype}; got {got}, on {cases}: " + ("the values are wrong, too" if wrong else "the values are right")


def described(search: Search, symptoms: Sequence[str]) -> str:
    """What the answers are in terms of the reference, where no alteration gives them."""
    return "\n".join([symptoms[0], *_indented(symptoms[1:]), f"  first seen: {search.complaint()}"])


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


def stopped(reason: str, search: Search, symptoms: Sequence[str]) -> str:
    """What was known when the search ended early: what is true of the output comes first."""
    text = f"{reason}, before the search ended"
    if search.tried:
        text += f"; {search.tried} alterations were tried alone, and none of them gives this output"
    first, *rest = [*symptoms, text]
    return "\n".join([first, *_indented(rest), f"  first seen: {search.complaint()}"])


def follows_own(parts: Sequence[str], known: Combination, count: int) -> str:
    """The component fails because of parts that nothing explains, as seen on `count` of the cases that fail."""
    listed = ", ".join(parts[:SHOWN]) + f" and {len(parts) - SHOWN} more" * (len(parts) > SHOWN)
    besides = f" and {_named(known)}" if known else ""
    return f"follows from {listed}{besides}: your output equals the reference with your own parts there, on {count} of the cases that fail"


def unexplained(search: Search, pairs: bool, besides: Sequence[str]) -> str:
    """Nothing explains the answers; the hypotheses that come near, with the share of the error that they leave, and what else was seen."""
    tried = f"none of {search.tried} alterations{', nor two together,' if pairs and search.tried > 1 else ''}"
    text = f"{tried} gives this output" if search.tried > 1 else "the one alteration that shows here does not give this output"
    if not search.tried:
        text = "the catalogue has no defect and no setting that shows here"
    if nearest := [(one, share) for one, share in search.nearest() if share <= NEAR]:
        text += "; the nearest: " + ", ".join(f"{one.name} leaves {_share(share)} of the error" for one, share in nearest)
    return "\n".join([text, f"  first seen: {search.complaint()}", *(f"  besides: {sentence}" for sentence in besides)])


def _indented(sentences: Sequence[str]) -> list[str]:
    return [f"  {sentence}" for sentence in sentences]


def unstable(found: Sequence[Combination], part: str = "", dropping: bool = False) -> str:
    """The port answers the same input differently. part: the first of its parts that does. dropping: only where a rate of dropout is not
    0, which it is on other cases."""
    text = "two evaluations of the same input differ: something random, or what the first one left behind, is active in evaluation mode"
    text += f"; the first part to differ on equal inputs is {part}" * bool(part)
    if dropping:
        text += "; it is so only where a rate of dropout is not 0: dropout is active in evaluation"
    if not found and dropping:
        return text
    if not found:
        return f"{text}; no defect of the catalogue makes exactly these cases random, and by more than rounding"
    return f"{text}, as with {' or '.join(map(_named, found))}"


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


def _cases(search: Search) -> str:
    return "cases that have an answer" if search.failed else "cases"


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "less than 1%"


def _named(combination: Combination) -> str:
    return " and ".join(one.name for one in combination)


def _separated(first: Combination, second: Combination, cases: Sequence[Case]) -> str:
    case = next((case for case in cases if separates(case, first, second)), None)
    names = [" and ".join(one.id for one in combination) for combination in (first, second)]
    return f"{case.id if case else 'no case of the suite'} {'would tell' if case else 'tells'} {names[0]} from {names[1]}"
