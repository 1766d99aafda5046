"""Whether what a mutant changes has the same value before and after, or is never used."""

import ast
import contextlib
from collections.abc import Iterator
from typing import Any

from rosettaformer.judge.diagnosis.hypotheses.code import Mutant, swapped
from rosettaformer.judge.diagnosis.hypotheses.expressions import call

__all__ = ["compared", "without"]

# names of the config, its parts, and arguments that a model either has or has not, whatever the text
CHOICES = set("""
    activation activation_name attend_to_memory base by_head cache cap cast cast_before_scale causal config drop dtype getattr
    groups head heads int isinstance keep keep_bhts keep_br keep_btd keep_btf kind layer LayerKind layout len local max memory
    memory_bsd memory_mask_bhts name np of_output one_plus one_plus_scale original own parameters pooler_activation rate rotary
    rotates rotation round_scale scale scale_embedding scaling Scores scores segment_bt self side size source source_mask_bs start
    target text token window
""".split())  # noqa: SIM905  # fmt: skip
COMPARED, UNUSABLE = "_compared", "_unusable"  # names that changed functions use


@contextlib.contextmanager
def compared(mutant: Mutant) -> Iterator[list[bool]]:
    """Yields a list that collects whether the expression before and after the change has the same
    value, each time.
    """
    found: list[bool] = []

    def note(before: Any, after: Any) -> Any:
        found.append(_same(before, after, _of_choices(node)))
        return before

    node = mutant.function.places[mutant.place][-1]
    with swapped(mutant.function, mutant.function.with_(mutant.place, _comparing(node, mutant.other)), **{COMPARED: note}):
        yield found


@contextlib.contextmanager
def without(mutant: Mutant) -> Iterator[list[bool]]:
    """Runs the function without the changed value; computing with it raises."""
    node = mutant.function.places[mutant.place][-1]
    with swapped(mutant.function, mutant.function.with_(mutant.place, _unused(node, mutant.other)), **{UNUSABLE: _Unusable()}):
        yield []


class _Unusable:
    """A value that can be passed on and asked whether it is None, and nothing else."""

    def _refuse(self, *_: Any) -> Any:
        raise TypeError

    __bool__ = __eq__ = __iter__ = __len__ = __getitem__ = __call__ = __array__ = __index__ = _refuse
    __hash__ = None  # type: ignore[assignment]


def _same(one: Any, other: Any, choice: bool) -> bool:
    """Whether two values are the same object; for choices, also equal or both off."""
    if one is other and not isinstance(one, bool | int | str):
        return True
    if isinstance(one, tuple | list) and type(one) is type(other) and len(one) == len(other):
        return all(_same(*pair, choice) for pair in zip(one, other, strict=True))
    plain = all(isinstance(value, bool | int | float | str | None) for value in (one, other))
    return choice and plain and (one == other or not (one or other))


def _of_choices(node: Any) -> bool:
    """Whether an expression is about the config or optional arguments only."""
    decided = node.test if isinstance(node, ast.IfExp) else node
    return {one.id for one in ast.walk(decided) if isinstance(one, ast.Name)} <= CHOICES


def _comparing(node: Any, other: Any) -> ast.AST:
    """The expression, with the values before and after the change compared."""
    if isinstance(node, ast.IfExp) and other in (node.body, node.orelse):
        test = call(COMPARED, call("bool", node.test), ast.Constant(other is node.body))
        return ast.IfExp(test, node.body, node.orelse)
    if isinstance(other, ast.Constant) and isinstance(other.value, bool):
        return call(COMPARED, call("bool", node), other)
    if not (places := _other_arguments(node, other)):
        return call(COMPARED, node, other)
    before, after = (ast.Tuple([one.args[place] for place in places], ast.Load()) for one in (node, other))
    both = ast.Starred(call(COMPARED, before, after), ast.Load())
    return ast.Call(node.func, [*node.args[: places[0]], both, *node.args[places[-1] + 1 :]], node.keywords)


def _unused(node: Any, other: Any) -> ast.AST:
    """The expression with a value that nothing can compute with."""
    unusable, places = ast.Name(UNUSABLE, ast.Load()), _other_arguments(node, other)
    arguments = [unusable if place in places else one for place, one in enumerate(getattr(node, "args", ()))]
    return ast.Call(node.func, arguments, node.keywords) if places else unusable


def _other_arguments(node: Any, other: Any) -> list[int]:
    """The places of arguments in which two calls differ; empty if anything else differs."""
    if not (isinstance(node, ast.Call) and isinstance(other, ast.Call) and node.func is other.func and node.keywords is other.keywords):
        return []
    return [place for place, pair in enumerate(zip(node.args, other.args, strict=True)) if pair[0] is not pair[1]]
