"""Defects of the feed-forward network."""

from typing import Any

from .defect import Defect, on_arguments

__all__ = ["DEFECTS"]


def _other_gelu(name: str) -> str:
    return {"gelu_erf": "gelu_tanh", "gelu_tanh": "gelu_erf", "gelu_sigmoid": "gelu_tanh"}.get(name, name)


def _quick_gelu(name: str) -> str:
    return {"gelu_erf": "gelu_sigmoid", "gelu_tanh": "gelu_sigmoid", "gelu_sigmoid": "gelu_erf"}.get(name, name)


def _kernels_reshaped(parameters: Any) -> Any:
    return {name: dict(dense) | {"kernel": dense["kernel"].reshape(dense["kernel"].T.shape).T} for name, dense in parameters.items()}


DEFECTS = (
    Defect(
        id="FFN1",
        title="the other form of GELU (erf, tanh)",
        what="`x Phi(x)` for its tanh approximation, or the reverse: the frameworks' defaults differ. Where the config says the sigmoid "
        "form it is the tanh one.",
        shows="Errors of up to 5e-4 near |x| = 2.7, none far away. A sweep of the activation shows it.",
        torch='F.gelu(x, approximate="none")  # the default; "tanh" for gelu_tanh',
        tf="keras.activations.gelu(x, approximate=False)  # the default; True for gelu_tanh",
        jax="jax.nn.gelu(x, approximate=False)  # the default is True, the tanh form",
        evidence="pocket-tts#278",
        replaces={"feed_forward.activation": on_arguments(name=_other_gelu)},
    ),
    Defect(
        id="FFN2",
        title="quick GELU, x sigmoid(1.702 x), for GELU, or the reverse",
        what="`x / (1 + exp(-1.702 x))` in place of GELU, or `x Phi(x)` where the config says the sigmoid form.",
        shows="Errors of up to 0.02 near |x| = 2.3. A sweep of the activation shows it.",
        torch='F.gelu(x)  # or F.gelu(x, approximate="tanh"), as the config says',
        tf="keras.activations.gelu(x)  # or with approximate=True, as the config says",
        jax="jax.nn.gelu(x, approximate=False)  # or True, as the config says",
        evidence="tinygrad#526",
        replaces={"feed_forward.activation": on_arguments(name=_quick_gelu)},
    ),
    Defect(
        id="FFN3",
        title="a kernel of axes (in, out) is read as (out, in)",
        what="The kernel's numbers are reshaped to the other layout, not transposed: GPT-2's Conv1D stores (in, out), Linear (out, in).",
        shows="The network computes with scrambled kernels; no error, since the sizes agree. Any input shows it.",
        torch="linear.weight.data = conv1d.weight.data.T.contiguous()  # a transpose, never .view or .reshape",
        tf="dense.kernel.assign(tf.transpose(linear_weight))  # Dense stores (in, out), torch's Linear (out, in)",
        jax='params["kernel"] = linear_weight.T  # Dense stores (in, out), torch\'s Linear (out, in)',
        evidence="transformers#311, nntile#370",
        replaces={"feed_forward.feed_forward": on_arguments(parameters=_kernels_reshaped)},
    ),
)
