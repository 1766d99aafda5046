"""The sentences that training prints."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ASKED = "asked to stop"


def all_done(steps: int) -> str:
    return f"all {steps} steps are done"


def out_of_time(minutes: float) -> str:
    return f"{minutes:g} minutes have passed"


def no_better(validations: int) -> str:
    return f"the validation loss has not improved in {validations} validations"


def ended(step: int, reason: str, speed: float, folder: Path, averaged: int) -> str:
    rate = [f"{speed:,.0f} tokens/s at the end, without padding"] if speed else []
    checkpoints = f"checkpoints: {folder}; average.safetensors is the mean of the last {averaged}"
    return "\n".join([f"step {step}: {reason}", *rate, checkpoints])


def older_checkpoint(problem: str) -> str:
    return f"{problem}\nusing the checkpoint before it"


def compiled(shape: Sequence[int], seconds: float) -> str:
    rows, source, target = shape
    return f"compiled the step for batches of {rows} x {source}/{target} in {seconds:.1f} s (once per shape)"


def left(step: int, loss: float, speed: float, minutes: float) -> str:
    return f"step {step}: {now(loss, speed)}, about {minutes:.0f} min left"


def now(loss: float, speed: float) -> str:
    return f"loss {loss:.3f}, {speed:,.0f} tokens/s"


def scores(title: str, values: Mapping[str, Any]) -> str:
    return f"{title}: " + ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in values.items())
