"""The sentences of the findings in a graph."""

from collections.abc import Iterable

SHOWN = 3  # places that a sentence lists
ABSENT = "{says}; the graph has no {looked}"
EPSILON = "{says}; it is {value:g} in {places}"
TRAINING = "the graph {why}, in {places}; export the model in evaluation mode"
CAST = "the graph's weights are {held}, but it casts to {dtype} in {places}"
ROUNDED = "the graph's weights are float64, but {name} is {rounded!r}: {number!r} rounded to float32"
TRANSPOSED = "{place} multiplies by the transposed {name}"
EXCHANGED = "in the graph, {kind} appears in the order of the layers {layers}"
UNTIED = "{place} has the shape of {name}, which is tied, but differs from {table}"
LACKS = "the graph lacks {name}, but has this tensor in other layers; {instead}"
MASK = "the mask's {number:g}, in {places}, hides a token while {condition}{limit:,.6g}"
REPLACED, ADDED = "some visible score is above -", "the scores of a row differ by less than "  # conditions of a mask


def few(places: Iterable[str]) -> str:
    """Returns the first places and the number of others."""
    first, more = (every := [*places])[:SHOWN], len(every) - SHOWN
    return ", ".join(first) + f" and {more} more places" * (more > 0)


def either(things: list[str]) -> str:
    return " or ".join(things) if len(things) < 3 else f"{', '.join(things[:-1])} or {things[-1]}"
