"""Says which input of a component each argument of a module's call takes: `call` of the port."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...common.modules.arguments import training_flag
from ..ports.adapters.call_mapping import inputs_of
from . import rotations
from .component_inputs import INPUTS, OF_ITSELF, OF_MEMORY, is_attention, is_model
from .masks import candidates, lengths, side
from .vocabulary import SEGMENTS, SOURCE, TARGET, role_of, tokens

_CONSTANTS = {"decode": "False", "need_weights": "False"}
_OPTIONS = {
    "causal": "causal", "is_causal": "causal", "use_causal_mask": "causal", "return_weights": "return_weights",
    "return_attention": "return_weights",
}  # fmt: skip
_CACHES = {"past", "cache"}  # words of an argument that takes the keys and values of earlier tokens
_LENGTHS = {"lens", "lengths", "length", "len"}  # words of an argument that takes the number of real keys of a row


@dataclass
class Call:
    """A module's arguments: what each is given, as text; for an open one the candidates, the likeliest first."""

    given: dict[str, str] = field(default_factory=dict)
    masks: dict[str, list[str]] = field(default_factory=dict)
    filled: dict[str, list[str]] = field(default_factory=dict)  # the same for a module that needs a mask even if a case has none
    sides: dict[str, str] = field(default_factory=dict)  # mask argument -> "source" (of the given keys) or "target" (of its own)
    unknown: list[str] = field(default_factory=list)
    by_row: bool = False  # whether the module takes one row without a batch axis

    @property
    def component_masks(self) -> list[str]:
        """The arguments that take a mask, or None."""
        return [name for name in self.sides if "mask" in name.lower()]

    @property
    def component_lengths(self) -> list[str]:
        """The arguments that take a number for each row, or None."""
        return [name for name in self.sides if _is_length(name)]

    def text(self, choice: Mapping[str, int], filled: bool = False) -> dict[str, str]:
        """Returns the arguments with one of the candidates for each mask."""
        masks = self.masks | (self.filled if filled else {})
        chosen = {name: found[choice.get(name, 0)] for name, found in masks.items()}
        return self.given | ({"for": '"b"'} if self.by_row else {}) | {name: text for name, text in chosen.items() if text}


def called(
    component: str,
    arguments: Mapping[str, inspect.Parameter],
    framework: str,
    decoder_only: bool = False,
    crossed: bool = False,
    by_row: bool = False,
) -> Call:
    """Returns what each argument of the component's module is given.

    decoder_only: the model or the layer is a decoder without an encoder. crossed: its only mask hides parts of the encoder's output.
    by_row: it takes one row without a batch axis.
    """
    data, masks = INPUTS[component]
    masks = masks[::-1] if crossed else masks
    if decoder_only:
        data = data[-1:] if component == "transformer" else data[:1]
        masks = masks[-1:] if is_model(component) else masks[:1]
    call, open_, rotary = Call(by_row=by_row), [], {}
    for name, argument in arguments.items():
        needed = argument.default is argument.empty
        flag = training_flag(name, False)
        if constant := _CONSTANTS.get(name.lower(), "") if flag is None else str(flag):
            if needed or str(argument.default) != constant:
                call.given[name] = f"lambda inputs: {constant}"
        elif name in _OPTIONS and _OPTIONS[name] in inputs_of(component):
            call.given[name] = f'"{_OPTIONS[name]}"'
        elif rotated := is_attention(component) and rotations.candidates(name, needed, framework):
            rotary[name] = rotated
        elif "mask" in name.lower() or (masks and _is_length(name)):
            call.masks[name] = []
        elif is_model(component) and component != "transformer" and set(tokens(name)) & SEGMENTS:
            call.given[name] = "lambda inputs: segments(inputs)" if needed else '"segment_bs"'
        elif needed or not set(tokens(name)) & _CACHES:
            open_.append((name, needed))
    _give(call, component, data, open_)
    own_causality = any(text == '"causal"' for text in call.given.values())
    names = [*call.masks]
    for name in names:
        asked = (component, name, masks, [one for one in names if one in call.masks], framework, own_causality, by_row)
        find = lengths if _is_length(name) else candidates
        call.masks[name] = find(*asked) if masks else []
        if masks and not is_model(component):
            call.filled[name] = find(*asked, filled=True)
        call.sides[name] = "target" if masks and side(component, name, masks, names) in ("self_mask_bhts", "target_mask_bt") else "source"
        if not any(call.masks[name]):
            del call.masks[name]
            call.filled.pop(name, None)
            if arguments[name].default is inspect.Parameter.empty:
                call.given[name] = "lambda inputs: None"
    call.masks |= rotary
    call.sides |= dict.fromkeys(rotary, "attention")
    if component == "positional_encoding":  # adds to vectors, or reads only how many tokens there are
        for name in [one for one, text in call.given.items() if text == f'"{data[0]}"']:
            of_ids = 'lambda inputs: inputs["zeros_btd"][..., 0]'  # reads only its length
            call.masks[name], call.sides[name] = [call.given.pop(name), '"position_bt"', of_ids], "source"
    return call


def _is_length(name: str) -> bool:
    return bool(set(tokens(name)) & _LENGTHS) and "max" not in tokens(name)


def _give(call: Call, component: str, data: Sequence[str], arguments: Sequence[tuple[str, bool]]) -> None:
    """Assigns the inputs by the names of arguments, and by their order if the names do not tell."""
    if not any(is_needed for _, is_needed in arguments):
        arguments = [(name, index == 0) for index, (name, _) in enumerate(arguments)]
    needed = [name for name, is_needed in arguments if is_needed]
    wanted = list(dict.fromkeys(data))
    if len(needed) == 1 and len(wanted) > 1:
        only = needed[0]
        if component in OF_ITSELF:
            call.given[only] = "itself"
        elif only in ("inputs", "x", "batch"):
            call.given[only] = "lambda inputs: (" + ", ".join(f'inputs["{name}"]' for name in wanted) + ")"
        else:
            call.given[only] = f'"{wanted[0]}"'
        if call.given[only] != f'"{wanted[0]}"':
            return
    rest = []
    for name, is_needed in arguments:
        found = _named(component, name, wanted)
        if found and (is_needed or f'"{found}"' not in call.given.values()):
            call.given[name] = f'"{found}"'
        elif is_needed:
            rest.append(name)
    spare = [one for one in data if f'"{one}"' not in call.given.values()]
    for name in rest:
        if spare:
            call.given[name] = f'"{spare.pop(0)}"'
        elif component in OF_ITSELF and len(rest) > 1:
            call.given[name] = '"memory_bsd"'
        else:
            call.unknown.append(name)
    for name, is_needed in arguments:  # an argument with a default, if an input has none yet
        if spare and not is_needed and name not in call.given and not _named(component, name, wanted) and component != "transformer":
            call.given[name] = f'"{spare.pop(0)}"'


def _named(component: str, name: str, wanted: Sequence[str]) -> str:
    """Returns the input that an argument's name means; empty if it means none."""
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
        found = ["source"] * bool(words & SOURCE) + ["target"] * bool(words & TARGET)
        if len(found) == 2:
            found = ["target"] if words & (TARGET - {"out", "output"}) else ["source"]
        return found[0] if found else ""
    if component.endswith(("decoder", "decoder_layer")) and "memory_bsd" in wanted and (words & OF_MEMORY or role in ("key", "value")):
        return "memory_bsd"
    return ""
