"""Diagnosis of gradients, losses and optimisers, on ports that make a mistake in their framework's own way."""

from pathlib import Path

import pytest

from rosettaformer.conformance.diagnosis import diagnose

# framework, the defect, and a port that has it
PORTS = {
    "tied by copying": (
        "torch",
        "logits_copied_table",
        "EMB5",
        """
import torch
from impl_torch.transformer import Transformer

framework = "torch"
config = {"tie_logits": True, "share_embeddings": True}


class Copied(Transformer):
    def __init__(self, config):
        super().__init__(config)
        head = self.logits

        def forward(x_btd):
            bias = None if head.bias is None else head.bias
            return torch.nn.functional.linear(x_btd, self.target_embedding.table.detach(), bias)

        head.forward = forward


components = {"transformer": lambda config, dtype: Copied(config)}
""",
    ),
    "Keras' Adam": (
        "tensorflow",
        "adam",
        "OPT1",
        """
import numpy as np
from reference_numpy import parameters as P


def adam(case):
    given = P.nest(case.inputs)
    flat = {part: P.flatten(given[part]) for part in ("parameters", "gradients", "first_moment", "second_moment")}
    n, b1, b2 = given["step"], given["beta_1"], given["beta_2"]
    result = {"parameters": {}, "first_moment": {}, "second_moment": {}}
    for name, p in flat["parameters"].items():
        g, kind = flat["gradients"][name], p.dtype.type
        m = kind(b1) * flat["first_moment"][name] + kind(1 - b1) * g
        v = kind(b2) * flat["second_moment"][name] + kind(1 - b2) * g * g
        if given["weight_decay"] and name.rpartition(".")[2] in ("kernel", "table"):
            p = p - p * kind(given["weight_decay"]) * kind(given["learning_rate"])
        alpha = kind(given["learning_rate"] * np.sqrt(1 - b2**n) / (1 - b1**n))
        result["parameters"][name] = p - alpha * m / (np.sqrt(v) + kind(given["epsilon"]))
        result["first_moment"][name], result["second_moment"][name] = m, v
    return {part: P.nest(tree) for part, tree in result.items()}
""",
    ),
    "smoothing over the others": (
        "torch",
        "cross_entropy",
        "LOS1",
        """
import torch
from impl_torch.loss import cross_entropy as right

framework = "torch"


def cross_entropy(logits_btv, label_bt, mask_bt=None, smoothing=0.0, total=None):
    x = logits_btv.float() if logits_btv.dtype.itemsize == 2 else logits_btv
    size = x.shape[-1]
    q = torch.full_like(x, smoothing / (size - 1)).scatter(-1, label_bt.long()[..., None], 1 - smoothing)
    loss_bt = -(q * x.log_softmax(-1)).sum(-1)
    mask_bt = torch.ones_like(label_bt, dtype=torch.bool) if mask_bt is None else mask_bt
    total = mask_bt.sum().clamp(min=1) if total is None else total
    return (loss_bt.masked_fill(~mask_bt, 0).sum() / total).to(logits_btv.dtype)


components = {"cross_entropy": lambda config, dtype: cross_entropy}
""",
    ),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.exhaustive if name.startswith("tied") else ()) for name in PORTS])
def test_a_mistake_of_training_is_named(tmp_path: Path, name: str) -> None:
    framework, file, defect, text = PORTS[name]
    pytest.importorskip(framework)
    port = tmp_path / f"{file}_port.py"
    port.write_text(text)
    found = diagnose(str(port), pairs=False).findings
    assert {finding.explanations for finding in found if finding.verdict == "explained"} == {((defect,),)}, [f.text for f in found]
