"""What a file computes and nothing judges: outputs without a meaning that is asked, and functions that are not called."""

from collections.abc import Collection, Iterator, Sequence

from .calls import Calls
from .meanings import IGNORED

SHOWN = 3


def sentences(calls: Calls, asked: Collection[str], chosen: bool) -> Iterator[tuple[str, str]]:
    """Yields what is not judged: where, and a sentence.

    asked: the meanings of the outputs that cases ask of the whole model. chosen: the user chose its function, and so left out the others.
    """
    for function, (_, outputs) in calls.meanings.items():
        judged = {IGNORED, *_read_by_steps(calls, function), *(asked if function == calls.forward_name else ())}
        left = [tensor for tensor in calls.bundle.entry(function).outputs if outputs.get(tensor.name) not in judged]
        if left:
            options = f"--output NAME=MEANING says what an output is, NAME={IGNORED} accepts it"
            yield f"outputs/{function}", f"{_listed(left)}: not judged; {options}"
    body = calls.entry.body
    others = [name for name in calls.bundle.names if name not in calls.meanings and not (body and calls.bundle.entry(name).body == body)]
    if others and not chosen:
        option = "--function NAME judges that function, and accepts that others are not"
        yield "outputs/functions", f"{_listed(others)}: not called; {option}"


def _read_by_steps(calls: Calls, function: str) -> set[str]:
    """Returns the meanings of outputs that steps read or judge."""
    if not calls.step_name or function not in (calls.step_name, "encode"):
        return set()
    inputs, _ = calls.meanings[calls.step_name]
    return {*inputs.values(), *(["logits"] if function == calls.step_name else [])}


def _listed(things: Sequence[object]) -> str:
    more = f" and {len(things) - SHOWN} more" * (len(things) > SHOWN)
    return ", ".join(map(str, things[:SHOWN])) + more
