"""Judges a sharded port with each of its injected bugs.

Run it with `make evidence STEP=sharding-faults`.
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

CLOSE = 0.01  # relative to the correct loss: looks normal
PLACES = ("self_attention", "feed_forward", "logits")  # and norms
NOT_SEEN = 1e-12  # relative to the correct loss: invisible below

HEAD = f"""# Bugs of sharded ports

Three ports, written only from the mathematics and the public APIs. `tests/ports/sharded/torch_decoder.py`
is Qwen 3 in PyTorch {version("torch").partition("+")[0]}: `parallelize_module` and DTensor shard its layers, `fully_shard`
shards its parameters, or `DistributedDataParallel` replicates them. `jax_decoder.py` is OLMo 2 in JAX
{version("jax")} with `jax.shard_map`, whose tokens are sharded between layers. `jax_steps.py` trains GPT-2 with
sharded parameters and moments. All conform. Each row is one of them with one bug (`faults.toml`), on a
mesh of CPU devices, in float64:

    rosettaformer check my_port.py --like DIR --mesh data=2,model=2
    rosettaformer diagnose my_port.py --like DIR --mesh data=2,model=2
    rosettaformer explain SHD1

- *caught*: the outputs that differ: logits, their gradients, and the loss with its gradients.
- *diagnose*: the known bug that reproduces all outputs when injected into the reference on that mesh, and
  its place.
- *loss*: the largest deviation of the loss; below {CLOSE:.0%} a curve looks normal.
- *shows*: the first observation of diagnosis, which then lists the gradients by name with their sharding,
  and a fix.
"""


def row(name: str, one: Planted, found: Sequence[Reply], what: Said | None) -> str:
    """Returns the row of a bug."""
    wrong = [reply for reply in found if reply.wrong]
    names = " or ".join(f"`{id_}`" for id_ in what.ids) if what and what.ids else "*unexplained*"
    place = what.text.partition(" alone, on")[0].rpartition(") in ")[2] if what and what.ids else ""
    where = f" in {place}" if place in PLACES or place.endswith("_norm") else ""
    ratio = loss_ratio(found)
    loss = "right" if ratio < NOT_SEEN else f"{ratio:.2%}"
    return f"| `{name}` | {one.what} | {one.mesh} | {len(wrong)} of {len(found)} | {names}{where} | {loss} | {_shown(what)} |"


def _shown(what: Said | None) -> str:
    """Returns the first observation, without the list that follows it."""
    if what is None:
        return ""
    fact = next((line for line in what.lines if not line.startswith(("fix of", " "))), "") if what.ids else what.text.partition("; ")[2]
    return fact.partition(":")[0]


def page(made: dict[str, str]) -> str:
    """Returns the page. Raises ValueError if a name differs from the injected bug."""
    own = {name: made[name].split(" | ") for name in planted()}
    for name, cells in own.items():
        if "`SHD" in cells[4] and cells[4].split("`")[1] != planted()[name].name:
            raise ValueError(f"{name} is {planted()[name].name or 'not a known bug'}; diagnosis names {cells[4]}")
    caught = [name for name, cells in own.items() if not cells[3].startswith("0 ")]
    named = [name for name, cells in own.items() if cells[4].startswith("`SHD")]
    close = [name for name, cells in own.items() if cells[5].startswith("right") or float(cells[5].rstrip("%")) / 100 < CLOSE]
    summary = (
        f"`check --mesh` catches {len(caught)} of {len(own)} bugs, and `diagnose` names {len(named)}. The loss of {len(close)} stays "
        f"within {CLOSE:.0%} of the correct one. The catalogue has {len(all_faults())} sharding bugs."
    )
    table = [
        "| | bug | mesh | caught | diagnose | loss | shows |",
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
