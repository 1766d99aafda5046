"""Runs the benchmarks and makes docs/performance.md, and the lines about speed in README.md.

`make evidence STEP=performance` is the command.
"""

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence import HOUSE, kept, made_by, wrapped, write

from bench.workloads import WORKLOADS

PORTS = ("torch", "tf", "jax")
EXPORTED = "impl_torch's export, ONNX Runtime"
OTHER = ("int8", "bfloat16", "snapshot")  # rows of ours that are no float32 model in use
# work, its tables, and the aim: time in units of the best peer's
WORK = (
    ("W1 forward pass; no padding, 20 %, 50 %", ("W1 0 %", "W1 20 %", "W1 50 %"), "1.00, 0.85, 0.65"),
    ("W2 training step; the same", ("W2 0 %", "W2 20 %", "W2 50 %"), "1.00, 0.85, 0.65"),
    ("W3 greedy search", ("W3",), "0.67"),
    ("W4 beam search, 4 beams", ("W4",), "0.67"),
    ("W5 small model: forward, greedy", ("W5 forward", "W5 greedy"), "0.60, 0.60"),
    ("W6 encoder, 2,048 tokens", ("W6",), "1.00"),
    ("W8 BERT base", ("W8",), "1.00"),
    ("W9 GPT-2 small, greedy", ("W9",), "1.00"),
    ("W11 Llama: forward, training, greedy", ("W11 forward", "W11 training", "W11 greedy"), "1.00, 1.00, 1.00"),
    *(
        (
            f"W12 Mixtral: the same, batch {batch}",
            tuple(f"W12 {kind} {batch}" for kind in ("forward", "training", "greedy")),
            "1.00, 1.00, 1.00",
        )
        for batch in (1, 8)
    ),
)
SHORT = {"forward pass": "W1 0 %", "training step": "W2 0 %", "greedy search": "W3", "BERT base": "W8", "GPT-2 search": "W9"}
SPEED = re.compile(r"(?<=<!-- speed -->\n)(?:.+\n)*")


@dataclass(frozen=True)
class Table:
    """A measured table: the rows by their names, each a mapping from column to cell."""

    title: str
    measured: str
    rows: dict[str, dict[str, str]]
    environment: Sequence[str]

    def ours(self, framework: str, *words: str) -> dict[str, str] | None:
        """The fastest row of our port with these words in its name; without words of a float32 model."""
        found = [row for name, row in self.rows.items() if name.startswith(f"impl_{framework} ") and self._is(name, words)]
        return min(found, key=lambda row: float(row["median ms"]), default=None)

    def _is(self, name: str, words: Iterable[str]) -> bool:
        return all(word in name for word in words) if words else not any(word in name for word in OTHER)

    def ratio(self, framework: str) -> str:
        """The ratio of our fastest row to the framework's best peer; a star marks another architecture, empty without a peer."""
        row = self.ours(framework)
        if not row or not row["ratio"]:
            return ""
        names = list(self.rows)
        after = names[max(index for index, name in enumerate(names) if name.startswith(f"impl_{framework} ") and self._is(name, ())) :]
        peer = next((name for name in after if self.rows[name]["ratio"] == "1.00" and not name.startswith("impl_")), "")
        return row["ratio"] + ("\\*" if peer.endswith("*") else "")


def tables(folder: Path) -> dict[str, Table]:
    """Every table of a folder by its name."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows = {row[0]: dict(zip(data["columns"], row, strict=True)) for row in data["rows"]}
        found[data["name"]] = Table(data["title"], data["measured"], rows, data["environment"])
    return found


def _ratios(found: dict[str, Table], names: Iterable[str], framework: str) -> str:
    ratios = [found[name].ratio(framework) for name in names]
    return ", ".join(ratio for ratio in ratios if ratio) or "no peer"


def speed(found: dict[str, Table]) -> str:
    """Returns the paragraph of the README."""
    ratios = "; ".join(f"{work} {', '.join(_ratios(found, (name,), port) for port in PORTS)}" for work, name in SHORT.items())
    about = "Our median time divided by that of the best peer, on PyTorch, TensorFlow and JAX (below 1, ours is faster)"
    return textwrap.fill(f"{about}: {ratios}.", 100) + "\n"


def _faster(table: Table, framework: str, word: str) -> str:
    """How many times as fast our fastest row with a word is as our fastest float32 row."""
    plain, other = table.ours(framework), table.ours(framework, word)
    return f"{float(plain['median ms']) / float(other['median ms']):.1f}" if plain and other else ""


def _to_ctranslate2(table: Table, *words: str) -> float:
    """The time of our fastest row of any framework in units of CTranslate2's, in the same precision."""
    ours = min(float(row["median ms"]) for port in PORTS if (row := table.ours(port, *words)))
    peers = [
        float(row["median ms"])
        for name, row in table.rows.items()
        if name.startswith("CTranslate2") and ("int8" in name) == ("int8" in words)
    ]
    return ours / peers[0]


def _further(found: dict[str, Table]) -> Iterator[str]:
    """Further measurements that the table of ratios lacks."""
    numpy = [float(found[f"W1 {share} %"].rows[name]["median ms"]) for share in (0, 20, 50)
             for name in ("reference_numpy", "torch.nn.Transformer eager")]  # fmt: skip
    ratios = ", ".join(f"{ours / peer:.2f}" for ours, peer in zip(numpy[::2], numpy[1::2], strict=True))
    yield f"- NumPy's forward pass divided by that of eager `torch.nn.Transformer`, with no padding, 20 %, 50 %: {ratios}."
    for name, what in (("W1 0 %", "Forward pass"), ("W8", "BERT base")):
        shares = ", ".join(f"{port} {row['of products']}" for port in PORTS if (row := found[name].ours(port)))
        yield f"- {what}, rate as a share of the framework's own matrix products: {shares}."
    memory = ", ".join(f"{port} {row['MiB']} MiB" for port in PORTS if (row := found["W6"].ours(port)))
    yield f"- Memory of the encoder with 2,048 tokens, which grows linearly with the length: {memory}."
    against = (
        ("W3", "greedy"),
        ("W4", "beams"),
        ("W8", "BERT base as a snapshot", "snapshot"),
        ("W9", "GPT-2"),
        ("W10", "greedy in int8", "int8"),
    )
    ratios = ", ".join(f"{what} {_to_ctranslate2(found[name], *words):.2f}" for name, what, *words in against)
    yield f"- The fastest port divided by CTranslate2: {ratios}."
    ratios = ", ".join(
        f"{what} {snapshot['ratio']}"
        for name, what in (("W8", "BERT base"), ("W11 forward", "Llama"))
        if (snapshot := found[name].ours("torch", "snapshot"))
    )
    yield f"- Forward pass of a snapshot for inference (`fused`, torch) divided by transformers: {ratios}."
    ratios = ", ".join(
        f"{name.removesuffix(' torch')} {float(row['median ms']) / float(ours['median ms']):.2f}"
        for name, table in found.items()
        if (row := table.rows.get(EXPORTED)) and (ours := table.ours("torch"))
    )
    yield f"- The torch port's ONNX export under ONNX Runtime divided by the port itself: {ratios}."
    for names, word, what in (
        (("W7 forward", "W7 greedy"), "bfloat16", "bfloat16 weights, forward pass and greedy search"),
        (("W10", "W11 forward", "W11 greedy"), "int8", "int8, greedy search, Llama's forward pass and greedy search"),
    ):
        times = "; ".join(f"{port} {', '.join(_faster(found[name], port, word) for name in names)}" for port in PORTS)
        yield f"- Speed-up over our own float32 by {what}: {times}."


def page(found: dict[str, Table]) -> str:
    """The summary."""
    rows = [f"| {work} | {aim} | {' | '.join(_ratios(found, names, port) for port in PORTS)} |" for work, names, aim in WORK]
    machines = dict.fromkeys(line[5:] for table in found.values() for line in table.environment if line.startswith("CPU: "))
    stamps = [f"CPU: {', '.join(machines)}", *(line for line in found["W1 0 %"].environment if re.match("cores|versions", line))]
    lines = [
        "# Performance",
        "",
        "Time and memory of the three ports, compared with the best peer of each framework.",
        made_by("performance"),
        "",
        wrapped(
            "Each number is our median time divided by that of the framework's best peer, measured interleaved in one run; below 1 ours "
            "is faster. The peers are `torch.nn.Transformer`, Hugging Face's models and CTranslate2; Keras layers and KerasHub; Flax NNX. "
            "A row is timed only if it gives the reference's answer. \\* marks a peer of another architecture."
        ),
        "",
        "| work | aim | torch | tf | jax |",
        "|---|---|---|---|---|",
        *rows,
        "",
        wrapped(
            "W1 and W2 are the paper's base model at batch 16 of 64 tokens; padding is at the right of rows whose lengths are spread "
            "evenly, and the ports skip it in their products. W11 is a decoder of 100 million parameters with Llama's components. "
            "In W12 a token chooses two of 8 experts."
        ),
        "",
        *map(wrapped, _further(found)),
        "",
        "",
        "## Where it was measured",
        "",
        *(wrapped(f"- {line}") for line in stamps),
        "",
        "## Measure again",
        "",
        "    pip install -e '.[bench]'",
        "    make evidence STEP=performance",
        "    python -m bench --help          # the workloads, one by one",
        "",
        wrapped(
            "The step writes every row as JSON: its median, quartiles, least time, compile time and memory, the command that measured it, "
            "and its environment."
        ),
        "",
        "Next: [performance-notes.md](performance-notes.md) explains the rows that miss their aim.",
    ]
    return "\n".join(lines) + "\n"


def measure(folder: Path) -> None:
    """Runs the benchmarks, each once for all runs of the step. Raises CalledProcessError where a row is wrong."""
    command = [sys.executable, "-m", "bench", "--data", str(folder / "data")]
    for words in (*(["--workload", name] for name in WORKLOADS), ["--scaling"]):
        kept(
            folder,
            " ".join(words),
            lambda more=words: subprocess.run([*command, *more], check=True).returncode,
        )


def main() -> None:
    """Measures, and writes both."""
    folder = Path(sys.argv[1])
    (folder / "docs").mkdir(exist_ok=True)
    measure(folder)
    found = tables(folder / "data")
    write(folder, "docs/performance.md", page(found))
    write(folder, "README.md", SPEED.sub(lambda _: speed(found), (HOUSE / "README.md").read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
