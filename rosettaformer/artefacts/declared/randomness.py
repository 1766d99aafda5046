"""Operations of training that a file still runs: dropout, random numbers, statistics of a batch."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from ..constants.reading import Constants, Node

SHOWN = 3


def findings(constants: Constants, nodes: Sequence[Node]) -> Iterator[str]:
    """Yields what an output depends on that is not inference. nodes: those that an output depends on.

    A runtime may leave such an operation out, or not: ONNX Runtime's optimiser removes dropout.
    """
    reached = [node for node in nodes if node.random and not any(_is_zero(constants.value(key)) for key in node.switches)]
    for why in dict.fromkeys(node.random for node in reached):
        places = [*dict.fromkeys(node.place for node in reached if node.random == why)]
        more = f" and {len(places) - SHOWN} more places" * (len(places) > SHOWN)
        yield f"the graph {why}, in {', '.join(places[:SHOWN])}{more}: export the model in evaluation mode"


def live(constants: Constants, functions: Collection[str] = ()) -> list[Node]:
    """Returns the operations on which an output of these functions depends, in the order of the file."""
    producers: dict[object, list[int]] = {}
    for number, node in enumerate(constants.nodes):
        for key in node.outputs:
            producers.setdefault(key, []).append(number)
    entries = [keys for name, keys in constants.entries.items() if not functions or name in functions]
    pending, seen, found = [key for keys in entries for key in keys], set[object](), set[int]()
    while pending:
        if (key := pending.pop()) in seen:
            continue
        seen.add(key)
        for number in producers.get(key, ()):
            node = constants.nodes[number]
            found.add(number)
            pending += [*node.inputs, *(own for body in node.bodies for own in constants.results.get(body, ()))]
    return [node for number, node in enumerate(constants.nodes) if number in found]


def _is_zero(value: np.ndarray | None) -> bool:
    return value is not None and value.size == 1 and not value.any()
