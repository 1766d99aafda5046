"""What the pages of the guide have their figures from, made up: other tests run the cases."""

from rosettaformer.conformance.report.summary import Summary
from rosettaformer.conformance.result import Result
from rosettaformer.guide import build


def made_up() -> build.Run:
    """Results of two cases of each of three components."""
    names = ("layer_norm", "layer_norm_vjp", "multi_head_attention")
    results = [
        Result(f"{name}-{i}", name, port, dtype, "cpu", "eager", "pass", ratio=0.5 + i, noise=1e-7 * (i + 1))
        for name in names for dtype in ("float64", "float32") for port in ("torch", "tf", "jax") for i in range(2)
    ]  # fmt: skip
    return build.Run(Summary(results))
