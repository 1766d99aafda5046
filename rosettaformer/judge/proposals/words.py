"""Sentences of proposals: the reasons that `new-port --from` prints, and a port file's prose."""

from collections.abc import Sequence

# why a decision was made
GIVEN, NAME, NAME_OR_PLACE, SHAPE = "--with", "by its name", "by its name or position", "by its shape"
FIELD = "from the constructor or the parameters"
MATCHES, NEAREST = "matches the reference in trials", "nearest to the reference in trials"
NAMES, TRIED_NAMES = "by names and shapes", "by names, shapes and trials"
UNDECIDED, NO_COUNTERPART = "undecided", "has no counterpart"
UNPAIRED = "removed: the other projections have no bias, and the reference has a bias on all four or none"

# comments of a port file
TODO = "TODO: decide:"
UNKNOWN = "the value of this argument"
CALL = "argument of the module: input of the component"
CONFIG = "config fields with a fixed value in the module; all cases use these values"
WEIGHTS = "end of the canonical name, end of the module's own name, axes of the module's tensor"


def title(name: str, component: str, file: str) -> str:
    """Returns the head of a port file."""
    return f"""A port of {name}, as {component}, derived from its constructor, parameters and arguments.

    rosettaformer check {file}       runs every case of the component
    rosettaformer diagnose {file}    names the bug and suggests a fix"""


def matching(deviation: str, form: str) -> str:
    """Returns the heading of matching values. deviation: of the norms. form: of the logits."""
    known = f", with {deviation} in the norms" * bool(deviation) + f", where the output is {form} the logits" * bool(form)
    return f"Chosen by trials: with these values the outputs match the reference's{known}:"


CLOSEST = "No values match the reference; these are by far the nearest:"


def other_form(form: str) -> str:
    """Returns why a model's output is not compared as it is."""
    return f"it returns {form} the logits, unlike the reference"


def only(dtypes: Sequence[str]) -> str:
    """Returns the decision to leave out float64."""
    return f"left out; only {', '.join(dtypes)}"


def single_precision(error: float) -> str:
    """Returns why float64 is left out."""
    return f"an error of {error:.0e} in float64, as from float32 numbers"


def limited(tried: int) -> str:
    """Returns the remark on a choice with too many combinations."""
    return f" (only {tried} combinations were tried)"


# why a module does not run
IGNORES_POSITIONS = "its output ignores the positions"
WRONG_SHAPE = "its output has shape"


def fails(problem: str) -> str:
    """Returns what is open if the module fails."""
    return f"the module does not run: {problem}"


def lacks(parameter: str) -> str:
    """Returns what is open if a canonical parameter has no tensor."""
    return f"the module has no {parameter}"


def of_dtype(dtype: object) -> str:
    """Returns the problem of an output of another dtype."""
    return f"its output is {dtype}"


def wrong_shape(own: Sequence[str], shape: tuple[int, ...]) -> str:
    """Returns the problem of outputs of other shapes."""
    return f"{WRONG_SHAPE} {' and '.join(own)}, expected {shape}"


def no_tensor(kinds: Sequence[str], shape: tuple[int, ...]) -> str:
    """Returns the problem of outputs that are not tensors."""
    return f"it returns {' and '.join(kinds)}, expected a tensor of shape {shape}"


def unmatched(path: str, shape: tuple[int, ...]) -> str:
    """Returns the question about a parameter without a counterpart."""
    return f"{TODO} which parameter is {path} of shape {shape}?"
