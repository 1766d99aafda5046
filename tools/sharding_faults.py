"""Judges a sharded port with each of its planted mistakes.

`make evidence STEP=sharding-faults` is the command.
"""

import functools
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from evidence import kept, write
from sharded_ports import Planted, judged, loss_ratio, planted

from rosettaformer.judge.catalogue.sharded import all_faults
from rosettaformer.judge.diagnosis.sharding import Reply, Said

CLOSE = 0.01  # of the right loss: what looks normal
PLACES = ("self_attention", "feed_forward", "logits")  # and norms
NOT_SEEN = 1e-12  # the same, from which on the loss shows nothing at all

HEAD = f"""# Mistakes of sharded ports

Three ports, written from the mathematics and the public engines alone. `tests/ports/sharded/torch_decoder.py` is
Qwen 3 in PyTorch {version("torch").partition("+")[0]}: `parallelize_module` and DTensor split its layers, `fully_shard` its parameters, or
`DistributedDataParallel` copies them. `jax_decoder.py` is OLMo 2 in JAX {version("jax")}:
`jax.shard_map`, with the tokens split between its layers. `jax_steps.py` trains GPT-2 with its
parameters and moments split. All conform. Each row is one of them with one mistake
(`faults.toml`), on a mesh of CPU devices, in float64:

    rosettaformer check my_port.py --like DIR --mesh data=2,model=2
    rosettaformer diagnose my_port.py --like DIR --mesh data=2,model=2
    rosettaformer explain SHD1

*caught*: the answers that differ, of logits, their gradients, and the loss with its gradients. *diagnose*: the fault of the catalogue
that, made in the reference on that mesh, gives every answer, and where it is. *loss*: how far the loss lies from the right one, at most;
below {CLOSE:.0%} a curve looks normal. *shows*: the first thing that diagnosis says of the answers; the gradients by name, how each is
split, and a fix follow.
"""


def row(name: str, one: Planted, found: Sequence[Reply], what: Said | None) -> str:
    """The row of a mistake."""
    wrong = [reply for reply in found if reply.wrong]
    names = " or ".join(f"`{id_}`" for id_ in what.ids) if what and what.ids else "*unexplained*"
    place = what.text.partition(" alone, on")[0].rpartition(") in ")[2] if what and what.ids else ""
    where = f" in {place}" if place in PLACES or place.endswith("_norm") else ""
    ratio = loss_ratio(found)
    loss = "right" if ratio < NOT_SEEN else f"{ratio:.2%}"
    return f"| `{name}` | {one.what} | {one.mesh} | {len(wrong)} of {len(found)} | {names}{where} | {loss} | {_shown(what)} |"


def _shown(what: Said | None) -> str:
    """The first thing that the answers show, without the list that follows it."""
    if what is None:
        return ""
    fact = next((line for line in what.lines if not line.startswith(("fix of", " "))), "") if what.ids else what.text.partition("; ")[2]
    return fact.partition(":")[0]


def page(made: dict[str, str]) -> str:
    """The whole page. Raises ValueError where a name is given that is not the planted one."""
    own = {name: made[name].split(" | ") for name in planted()}
    for name, cells in own.items():
        if "`SHD" in cells[4] and cells[4].split("`")[1] != planted()[name].name:
            raise ValueError(f"{name} is {planted()[name].name or 'no fault of the catalogue'}; diagnosis says {cells[4]}")
    caught = [name for name, cells in own.items() if not cells[3].startswith("0 ")]
    named = [name for name, cells in own.items() if cells[4].startswith("`SHD")]
    close = [name for name, cells in own.items() if cells[5].startswith("right") or float(cells[5].rstrip("%")) / 100 < CLOSE]
    summary = (
        f"Of {len(own)} mistakes `check --mesh` catches {len(caught)}, and `diagnose` names {len(named)}. The loss of {len(close)} stays "
        f"within {CLOSE:.0%} of the right one. The catalogue has {len(all_faults())} faults."
    )
    table = [
        "| | mistake | mesh | caught | diagnose | loss | shows |",
        "|---|---|---|---|---|---|---|",
        *(made[name] for name in planted()),
    ]
    return "\n".join([HEAD, summary, "", *table, ""])


def _row(name: str) -> str:
    with tempfile.TemporaryDirectory() as root:
        return row(name, planted()[name], *judged(planted()[name], Path(root)))


def main() -> None:
    """Writes the page."""
    folder = Path(sys.argv[1])
    write(folder, "sharding-faults.md", page({name: kept(folder, name, functools.partial(_row, name)) for name in planted()}))


if __name__ == "__main__":
    main()
