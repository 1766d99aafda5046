"""Candidates for masks, row lengths and rotations in their common forms, likeliest first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..ports.adapters.call_mapping import stands_for
from .components import inputs, is_model
from .helpers import Dialect
from .vocabulary import OF_MEMORY, PLACES, ROTARY, TARGET, tokens

_LENGTHS = {"lens", "lengths", "length", "len"}  # words in names of arguments for the number of real keys per row
# the ways to store the angles `t j` of cosines and sines
_FORMS = ("both(inputs)[None]", "both(inputs)", "angles(inputs)", "angles(inputs)[None]", "neighbours(inputs)")


def is_length(name: str) -> bool:
    """Whether an argument of that name takes one number per row."""
    return bool(set(tokens(name)) & _LENGTHS) and "max" not in tokens(name)


@dataclass(frozen=True)
class MaskArguments:
    """The arguments of a module that hide keys.

    masks: the component's masks, in the order of the arguments. names: of the arguments.
    own_causality: whether another argument requests the causal mask. by_row: whether there is no
    batch axis.
    """

    component: str
    masks: Sequence[str]
    names: Sequence[str]
    dialect: Dialect
    own_causality: bool
    by_row: bool

    def side(self, name: str) -> str:
        """Returns which of the component's masks an argument is."""
        if len(self.masks) == 1:
            return self.masks[0]
        words, foreign = set(tokens(name)), {"memory", "src", "source"}
        if is_model(self.component):
            return self.masks[1 if words & TARGET and not words & foreign else 0]
        own = words & (TARGET | {"self", "look", "ahead", "causal", "slf"})
        if own and not words & (foreign | {"cross", "enc", "encoder"}):
            return self.masks[0]
        if words & (OF_MEMORY | {"padding"}):
            return self.masks[1]
        return self.masks[0 if self.names.index(name) == 0 else 1]

    def candidates(self, name: str, filled: bool = False) -> list[str]:
        """Returns an argument's candidates. filled: ones if a case has no mask."""
        return self._lengths(name, filled) if is_length(name) else self._masks(name, filled)

    def _masks(self, name: str, filled: bool) -> list[str]:
        mask, model = self.side(name), is_model(self.component)
        beside = [other for other in self.names if other != name and self.side(other) == mask]
        padding = [other for other in (name, *beside) if "padding" in other]
        if beside and not padding and self.names.index(beside[0]) < self.names.index(name):
            return []
        causal = mask in ("self_mask_bhts", "target_mask_bt")
        if self.component in ("multi_head_attention", "self_attention", "self_attention_sublayer"):
            causal = not self.own_causality
        if padding and name not in padding:  # padding has a separate argument
            return [f"lambda inputs: {sign}earlier(inputs)" for sign in ("~", "")] if causal else []
        plain = f'inputs["{mask}"]'
        full = f"attend_{mask.split('_')[0]}(inputs)" if causal or model else plain
        if filled:
            full, plain = (f'filled({text}, inputs["{self._keys(mask)}"])' for text in (full, plain))
        of_keys, keys = (f"keys_{mask.split('_')[0]}(inputs)", "mask") if model else (plain, "rows(mask)")
        dtype = self.dialect.single if model else f'inputs["{inputs(self.component)[0]}"].dtype'
        cast, first = self.dialect.cast.format, "mask[0]" if self.by_row else "mask[:, 0]"
        of_rows = [f"~{keys}", keys] + [cast(keys, self.dialect.integer)] * model
        changes = [first, "~mask", f"~{first}", cast("mask", dtype), cast("~mask", dtype), f"-1e9 * {cast('~mask', dtype)}"]
        rows = [_given(of_keys, "mask", change) for change in of_rows]
        whole = [_whole(full), *(_given(full, "mask", change) for change in changes)]
        if causal and not model:  # the module may be causal without a mask
            whole += [*(_given(plain, "mask", change) for change in changes), _whole(plain)]
        if causal and self.component == "decoder_layer" and not padding:
            return whole
        return [*rows, *whole] if padding else [*whole, *rows]

    def _lengths(self, name: str, filled: bool) -> list[str]:
        mask = self.side(name)
        length = next(length for length, of in stands_for(self.component).items() if of == mask)
        if not filled:
            return [f'"{length}"', _given(f'inputs["{length}"]', "length", self.dialect.cast.format("length", self.dialect.integer))]
        keys = self._keys(mask)
        if self.by_row:
            return [f'lambda inputs: inputs["{keys}"].shape[0] if inputs["{length}"] is None else inputs["{length}"]']
        return [f'lambda inputs: lengths(inputs["{length}"], inputs["{keys}"])']

    def _keys(self, mask: str) -> str:
        """Returns the input whose positions a mask hides."""
        return inputs(self.component)[0 if mask == "self_mask_bhts" else -1]


def _given(value: str, name: str, change: str) -> str:
    """Returns the text of a function that changes a value, if a case has it."""
    return f"lambda inputs: given({value}, lambda {name}: {change})"


def _whole(value: str) -> str:
    """Returns the text of the input itself, or of a function of the inputs."""
    return value.removeprefix("inputs[").removesuffix("]") if value.startswith('inputs["') else f"lambda inputs: {value}"


def rotations(name: str, needed: bool, dialect: Dialect) -> list[str]:
    """Returns candidates for an argument that takes rotations, likeliest first; otherwise [].

    An empty text means the argument's default.
    """
    words, library = set(tokens(name)), dialect.library
    if "start" in words or "offset" in words:
        return ["lambda inputs: 0"] if needed else []
    if words & {"cos", "cosine", "sin", "sine"}:
        function = "cos" if words & {"cos", "cosine"} else "sin"
        return [f"lambda inputs: {library}.{function}({form})" for form in _FORMS]
    pairs = [f"lambda inputs: ({library}.cos({form}), {library}.sin({form}))" for form in _FORMS]
    if name == "position_embeddings":
        return pairs
    if words & ROTARY:
        return [f"lambda inputs: {library}.exp(1j * angles(inputs))", *pairs]
    if words & PLACES:
        return [*([] if needed else [""]), "lambda inputs: positions(inputs)"]
    return []


def computes_angles(texts: Iterable[Sequence[str]]) -> bool:
    """Whether candidates of a call compute angles."""
    return any("(inputs)" in text and ("angles(" in text or "both(" in text) for found in texts for text in found)
