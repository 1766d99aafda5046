"""The worked example: one block in each framework, with the same weights and batches."""

import functools
import re
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np

from ..code import Code

# region of the files -> its subject
PARTS = {
    "module": "The module",
    "weights": "Its weights, from canonical arrays",
    "training": "The training: clipping, schedule, decoupled decay",
    "checkpoint": "The checkpoint",
    "export": "The export",
}
STEPS, WIDTH, HIDDEN = 20, 8, 16


def file(framework: str) -> Traversable:
    """Returns the file of a framework's example."""
    return resources.files("rosettaformer.guide") / "snippets" / "translation" / f"block_{framework}.py"


@functools.cache
def parts(framework: str) -> dict[str, Code]:
    """Returns the regions of the file by name."""
    text = file(framework).read_text(encoding="utf-8")
    found = re.findall(r"^# region (\w+)\n(.*?)\n+# endregion", text, re.MULTILINE | re.DOTALL)
    origin = f"rosettaformer/guide/snippets/translation/block_{framework}.py"
    return {name: Code(code, origin) for name, code in found}


def task() -> tuple[dict[str, np.ndarray], list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Returns canonical weights, batches (x, y) `b t d`, and a test input, in float32."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    weights = {
        "norm.scale": 1 + 0.1 * normal(WIDTH),
        "norm.offset": 0.1 * normal(WIDTH),
        "hidden.kernel": 0.3 * normal(WIDTH, HIDDEN),
        "hidden.bias": 0.1 * normal(HIDDEN),
        "output.kernel": 0.3 * normal(HIDDEN, WIDTH),
        "output.bias": 0.1 * normal(WIDTH),
    }
    inputs = [normal(4, 3, WIDTH) for _ in range(STEPS)]
    return weights, [(x, np.roll(x, 1, axis=-1)) for x in inputs], normal(2, 3, WIDTH)
