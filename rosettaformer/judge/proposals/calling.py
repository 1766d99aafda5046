"""Maps each argument of a module's call to an input of the component: the port's `call`."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...common.modules.arguments import training_flag
from ..ports.adapters.call_mapping import inputs_of
from .components import OF_ITSELF, inputs, is_attention, is_model, masks
from .helpers import DIALECTS
from .open_arguments import MaskArguments, is_length, rotations
from .vocabulary import OF_MEMORY, SOURCE, TARGET, role_of, tokens

_CONSTANTS = {"decode": "False", "need_weights": "False"}
_OPTIONS = {
    "causal": "causal", "is_causal": "causal", "use_causal_mask": "causal", "return_weights": "return_weights",
    "return_attention": "return_weights",
}  # fmt: skip
_CACHES = {"past", "cache"}  # words in names of arguments for cached keys and values


@dataclass
class Call:
    """A module's arguments and their texts; for open ones the candidates, likeliest first."""

    given: dict[str, str] = field(default_factory=dict)
    masks: dict[str, list[str]] = field(default_factory=dict)
    filled: dict[str, list[str]] = field(default_factory=dict)  # the same for a module that always needs a mask
    sides: dict[str, str] = field(default_factory=dict)  # mask argument -> "source" (given keys) or "target" (own keys)
    unknown: list[str] = field(default_factory=list)
    by_row: bool = False  # the module takes one row without a batch axis

    def text(self, chosen: Mapping[str, Any]) -> dict[str, str]:
        """Returns all arguments' texts, with the chosen ones. "" keeps an argument's default."""
        return self.given | ({"for": '"b"'} if self.by_row else {}) | {name: text for name, text in chosen.items() if text}


def called(
    component: str,
    arguments: Mapping[str, inspect.Parameter],
    framework: str,
    decoder_only: bool = False,
    crossed: bool = False,
    by_row: bool = False,
) -> Call:
    """Returns the text that each argument of the component's module gets.

    decoder_only: the model or layer is a decoder without an encoder. crossed: its only mask hides
    parts of the encoder's output. by_row: it takes one row without a batch axis.
    """
    data, hiding = inputs(component), masks(component)[:: -1 if crossed else 1]
    if decoder_only:
        data = data[-1:] if component == "transformer" else data[:1]
        hiding = hiding[-1:] if is_model(component) else hiding[:1]
    call, open_, rotary = Call(by_row=by_row), dict[str, bool](), dict[str, list[str]]()
    for name, argument in arguments.items():
        needed, flag = argument.default is argument.empty, training_flag(name, False)
        if constant := _CONSTANTS.get(name.lower(), "") if flag is None else str(flag):
            if needed or str(argument.default) != constant:
                call.given[name] = f"lambda inputs: {constant}"
        elif name in _OPTIONS and _OPTIONS[name] in inputs_of(component):
            call.given[name] = f'"{_OPTIONS[name]}"'
        elif rotated := is_attention(component) and rotations(name, needed, DIALECTS[framework]):
            rotary[name] = rotated
        elif "mask" in name.lower() or (hiding and is_length(name)):
            call.masks[name] = []
        elif needed or not set(tokens(name)) & _CACHES:
            open_[name] = needed
    _give(call, component, data, open_)
    names = [*call.masks]
    hides = MaskArguments(component, hiding, names, DIALECTS[framework], '"causal"' in call.given.values(), by_row)
    for name in names:
        if texts := hides.candidates(name) if hiding else []:
            call.masks[name] = texts
            call.filled |= {} if is_model(component) else {name: hides.candidates(name, filled=True)}
        else:
            del call.masks[name]
            call.given |= {name: "lambda inputs: None"} if arguments[name].default is inspect.Parameter.empty else {}
        call.sides[name] = "target" if hiding and hides.side(name) in ("self_mask_bhts", "target_mask_bt") else "source"
    call.masks |= rotary
    call.sides |= dict.fromkeys(rotary, "attention")
    if component == "positional_encoding":  # it adds to vectors, or only reads the number of tokens
        for name in [one for one, text in call.given.items() if text == f'"{data[0]}"']:
            of_ids = 'lambda inputs: inputs["zeros_btd"][..., 0]'  # only its length is read
            call.masks[name], call.sides[name] = [call.given.pop(name), '"position_bt"', of_ids], "source"
    return call


def _give(call: Call, component: str, data: Sequence[str], arguments: Mapping[str, bool]) -> None:
    """Assigns inputs by the arguments' names, otherwise by their order.

    arguments: whether each one is required; if none is, the first counts as required.
    """
    if not any(arguments.values()):
        arguments = {name: index == 0 for index, name in enumerate(arguments)}
    needed = [name for name, is_needed in arguments.items() if is_needed]
    wanted = list(dict.fromkeys(data))
    if len(needed) == 1 and len(wanted) > 1:
        if component in OF_ITSELF:
            call.given[needed[0]] = "itself"
            return
        if needed[0] in ("inputs", "x", "batch"):
            call.given[needed[0]] = "lambda inputs: (" + ", ".join(f'inputs["{name}"]' for name in wanted) + ")"
            return
        call.given[needed[0]] = f'"{wanted[0]}"'
    means = {name: _named(component, name, wanted) for name in arguments}
    for name, found in means.items():
        if found and (arguments[name] or f'"{found}"' not in call.given.values()):
            call.given[name] = f'"{found}"'
    rest = [name for name in needed if not means[name] and name not in call.given]
    spare = [one for one in data if f'"{one}"' not in call.given.values()]
    for name in rest:
        if spare:
            call.given[name] = f'"{spare.pop(0)}"'
        elif component in OF_ITSELF and len(rest) > 1:
            call.given[name] = '"memory_bsd"'
        else:
            call.unknown.append(name)
    for name in arguments:  # arguments with defaults get the remaining inputs
        if spare and name not in needed and name not in call.given and not means[name] and component != "transformer":
            call.given[name] = f'"{spare.pop(0)}"'


def _named(component: str, name: str, wanted: Sequence[str]) -> str:
    """Returns the input that an argument's name stands for; "" if none."""
    if name in wanted:
        return name
    words, role = set(tokens(name)), role_of(name)
    if component in OF_ITSELF:
        if role in ("key", "value") or words & OF_MEMORY:
            return "memory_bsd"
        return wanted[0] if role == "query" or name in ("x", "hidden_states") else ""
    if wanted in (["x_btd"], ["x_bsd"]) and role in ("query", "key", "value"):
        return wanted[0]
    if component == "transformer" and len(wanted) == 2:
        source, target = words & SOURCE, words & (TARGET - {"out", "output"})
        return "target" if target or (words & TARGET and not source) else "source" if source else ""
    if component.endswith(("decoder", "decoder_layer")) and "memory_bsd" in wanted and (words & OF_MEMORY or role in ("key", "value")):
        return "memory_bsd"
    return ""
