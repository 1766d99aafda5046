"""Facts that failing outputs have in common, for losses, updates, caches, searches and gradients.

Symptoms do not describe the values of these; instead: which cases fail, which outputs are wrong,
and from which step on.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...case import Case
from ...compare import compare, relative_error
from ...expectation.components import forward_of
from ...expectation.tolerance import Expectation
from ..altered import Outputs
from ..hypotheses.tensors import LAYER
from ..words import listed
from .answered import Symptom
from .conditions import condition

SAME = 1e-4  # relative difference up to which factors are the same
SAYS = 55  # specificity of these sentences, which say where and not what
NAMED = 3  # outputs listed by name
WORDS = {"token_bn": "ids", "token_bwn": "ids", "log_p_bn": "log-probabilities", "score_bw": "scores", "parameters": "parameters",
         "first_moment": "first moments", "second_moment": "second moments"}  # fmt: skip
STEPPED = {"token_bn": "token", "token_bwn": "token", "log_p_bn": "token"}  # outputs whose last axis counts steps

Array = np.ndarray
Answer = tuple[Case, Mapping[str, Expectation], Outputs]


def common(failing: Sequence[Answer], right: Sequence[Case]) -> list[Symptom]:
    """The facts that hold for every failing output. right: the passing cases."""
    if not failing:
        return []
    outputs = _backward(failing) or [*_outputs(failing), *_multiples(failing)]
    sentences = [*_cases([case for case, *_ in failing], right), *outputs, *_from_step(failing), *_rows(failing)]
    return [Symptom(f"common {index}", sentence, SAYS) for index, sentence in enumerate(sentences)]


def common_cases(failing: Sequence[Case], right: Sequence[Case]) -> list[Symptom]:
    """The property that all failing cases and no other case have."""
    return [Symptom("cases", sentence, SAYS) for sentence in _cases(failing, right)]


def _cases(failing: Sequence[Case], right: Sequence[Case]) -> Iterator[str]:
    if where := condition(failing, right):
        yield f"your output differs from the reference on {len(failing)} of {len(failing) + len(right)} cases, {where}"


def _outputs(failing: Sequence[Answer]) -> Iterator[str]:
    """Which outputs are correct on every failing case, by the common parts of their names."""
    verdicts: dict[str, set[bool]] = defaultdict(set)
    for _, clean, outputs in failing:
        for name, one in clean.items():
            verdicts[name].add(compare(one, outputs.get(name)).excess > 1)
    wrong = [name for name, seen in verdicts.items() if True in seen]
    right = [name for name in verdicts if name not in wrong]
    if not wrong or not right:
        return
    parts = list(dict.fromkeys(map(_first, wrong)))
    within = [name for name in right if _first(name) in parts]
    endings = dict.fromkeys(map(_last, wrong))
    of = f"among your {'gradients' if forward_of(failing[0][0].component) else 'outputs'}, the"
    if not within:
        others = list(dict.fromkeys(map(_first, right)))
        yield f"{of} {_words(parts)} {_plural(parts, 'differs')}; the {_words(others)} {_plural(others, 'is')} correct"
    elif not endings.keys() & set(map(_last, within)) and all("." in name for name in wrong):
        yield f"{of} {_words(parts)} that end in {_words(list(endings))} differ; the others are correct"
    else:
        yield f"{of} {_words(wrong)} {_plural(wrong, 'differs')}; the others are correct"


def _backward(failing: Sequence[Answer]) -> list[str]:
    """Where the gradients of a whole model first go wrong in the backward pass; empty for other
    outputs.

    A wrong gradient makes the gradients of all earlier layers wrong, so the last wrong layer tells.
    """
    if not failing[0][0].folder or not forward_of(failing[0][0].component):
        return []
    wrong = {name for _, clean, outputs in failing for name, one in clean.items() if compare(one, outputs.get(name)).excess > 1}
    layers = {name: parts.groups() for name in failing[0][1] if (parts := LAYER.match(name))}
    stacks = dict.fromkeys(stack for stack, _, _ in layers.values())
    stack = next((one for one in reversed(stacks) if any(layers[name][0] == one for name in layers if name in wrong)), "")
    last = max((int(index) for name, (own, index, _) in layers.items() if own == stack and name in wrong), default=-1)
    own = {rest: name in wrong for name, (one, index, rest) in layers.items() if one == stack and int(index) == last}
    if all(own.values()):  # of this layer; none if no layer is wrong
        return []
    differ = [rest for rest, off in own.items() if off]
    return [
        f"in backward order, the first wrong gradients are those of {listed([f'`{one}`' for one in differ])} "
        f"in layer {last}; the others in that layer{' and those of later layers' * _later(layers, stack, last)} are correct"
    ]


def _later(layers: Mapping[str, Sequence[str]], stack: str, last: int) -> bool:
    """Whether a stack has a layer after this one."""
    return any(one == stack and int(index) > last for one, index, _ in layers.values())


def _multiples(failing: Sequence[Answer]) -> Iterator[str]:
    """Which outputs are the same multiple of the reference's in every failing case."""
    groups: list[tuple[list[str], Array]] = []
    for name in failing[0][1]:
        ratios = np.array([_ratio(clean[name].reference, outputs.get(name)) for _, clean, outputs in failing if name in clean])
        if len(ratios) < len(failing) or np.isnan(ratios).any():
            return
        same = next((names for names, other in groups if np.allclose(ratios, other, rtol=SAME)), None)
        if same is None:
            groups.append(([name], ratios))
        else:
            same.append(name)
    if 1 < len(groups) < len(failing[0][1]):
        each = "; ".join(_words(names) for names, _ in groups)
        yield f"your outputs are multiples of the reference's, and these are the same multiple: {each}"


def _ratio(reference: Array, got: object) -> float:
    """The number that a reference's output is multiplied by; NaN if none gives the other output."""
    if not isinstance(got, np.ndarray) or got.shape != reference.shape or not np.isfinite(got).all() or not reference.any():
        return np.nan
    place = np.unravel_index(np.abs(reference).argmax(), reference.shape)
    ratio = float(got[place]) / float(reference[place])
    return ratio if np.allclose(got.astype(np.float64), ratio * reference, rtol=SAME, atol=SAME * np.abs(got[place])) else np.nan


def _plural(names: Sequence[str], verb: str) -> str:
    """The verb for some outputs; outputs with words of their own are plural."""
    return verb if len(names) == 1 and names[0] not in WORDS else {"differs": "differ", "is": "are"}[verb]


def _first(name: str) -> str:
    return name.partition(".")[0]


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _words(names: Sequence[str]) -> str:
    return listed([WORDS.get(name, f"`{name}`") for name in names], NAMED)


def _from_step(failing: Sequence[Answer]) -> Iterator[str]:
    """Whether the first step is right in every failing output and later ones are wrong, and which
    later steps are right before the first wrong one.
    """
    found: list[tuple[str, int, np.ndarray]] = []
    lengths: list[Sequence[int]] = []  # of the steps up to the first wrong one
    for case, clean, outputs in failing:
        for name, one in clean.items():
            off = _off(one, outputs.get(name))
            if off is None or not off.any():
                continue
            if name in STEPPED:
                found.append((STEPPED[name], 1, np.asarray(off.reshape(-1, off.shape[-1]).any(0))))
            elif case.component == "decode_in_steps":
                found.append(("step", case.inputs["splits"][0], np.asarray(off.any((0, 2)))))
                before = int((np.cumsum(case.inputs["splits"]) <= found[-1][2].argmax()).sum())
                lengths.append(case.inputs["splits"][: before + 1])
            elif off.ndim == 1 and case.component == "noam":
                found.append(("step", 1, off))
    if not found or any(off[:length].any() for _, length, off in found):
        return
    if lengths and all(own[-1] > 1 and {*own[1:-1]} == {1} for own in lengths):
        yield "the first step and later steps of one token are correct, later steps of several tokens are wrong"
    else:
        yield f"the first {found[0][0]} is correct, later ones are wrong"


def _rows(failing: Sequence[Answer]) -> Iterator[str]:
    """Whether the first row of the batch is right in every failing output, and only that."""
    found = [
        np.asarray(off.reshape(len(off), -1).any(axis=1))
        for _, clean, outputs in failing
        for name, one in clean.items()
        if "_b" in name and (off := _off(one, outputs.get(name))) is not None and len(off) > 1 and off.any()
    ]
    if found and not any(off[0] for off in found) and (len(found) > 1 or found[0][1:].all()):
        yield "the first row of the batch is correct, others are wrong"


def _off(expectation: Expectation, got: object) -> np.ndarray | None:
    """The elements that differ; None if the output has the wrong shape."""
    if not isinstance(got, np.ndarray) or got.shape != expectation.reference.shape or not got.ndim:
        return None
    return relative_error(expectation, got) > 1
