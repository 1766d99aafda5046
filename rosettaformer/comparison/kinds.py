"""Layers common to the frameworks: kinds of classes, roles and axes of variables, hyperparameters."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..common.modules.words import IN_PROJECTION

# class -> kind; subclasses have the kind of their base class
KINDS = {
    "torch": {
        "Linear": "dense", "Conv1D": "dense_io", "Conv1d": "convolution", "Conv2d": "convolution", "Conv3d": "convolution",
        "ConvTranspose1d": "transposed_convolution", "ConvTranspose2d": "transposed_convolution",
        "ConvTranspose3d": "transposed_convolution", "Embedding": "embedding", "_BatchNorm": "batch_norm",
        "LayerNorm": "layer_norm", "GroupNorm": "group_norm", "RMSNorm": "rms_norm", "MultiheadAttention": "attention",
        "_DropoutNd": "dropout", "_MaxPoolNd": "max_pool", "_AvgPoolNd": "average_pool", "_AdaptiveAvgPoolNd": "adaptive_average_pool",
        "_AdaptiveMaxPoolNd": "adaptive_max_pool", "Flatten": "flatten", "ReLU": "relu", "ReLU6": "relu6", "GELU": "gelu", "SiLU": "silu",
        "Tanh": "tanh", "Sigmoid": "sigmoid", "LeakyReLU": "leaky_relu", "ELU": "elu", "Softmax": "softmax", "Hardswish": "hard_silu",
        "RNNBase": "recurrent", "Sequential": "container", "ModuleList": "container",
    },
    "keras": {
        "Dense": "dense", "BaseDepthwiseConv": "depthwise_convolution", "BaseConv": "convolution",
        "BaseConvTranspose": "transposed_convolution", "Embedding": "embedding", "BatchNormalization": "batch_norm",
        "LayerNormalization": "layer_norm", "GroupNormalization": "group_norm", "RMSNormalization": "rms_norm",
        "MultiHeadAttention": "attention", "Dropout": "dropout", "BaseGlobalPooling": "global_pool", "BasePooling": "pool",
        "Flatten": "flatten", "ReLU": "relu", "LeakyReLU": "leaky_relu", "ELU": "elu", "Softmax": "softmax", "Activation": "activation",
        "RNN": "recurrent", "Sequential": "container", "InputLayer": "input", "ZeroPadding2D": "zero_padding",
    },
    "flax": {
        "Linear": "dense", "Dense": "dense", "Conv": "convolution", "ConvTranspose": "transposed_convolution", "Embed": "embedding",
        "BatchNorm": "batch_norm", "LayerNorm": "layer_norm", "GroupNorm": "group_norm", "RMSNorm": "rms_norm",
        "MultiHeadAttention": "attention", "MultiHeadDotProductAttention": "attention", "Dropout": "dropout", "Sequential": "container",
        "RNNCellBase": "recurrent",
    },
}  # fmt: skip
SPATIAL = ("convolution", "transposed_convolution", "depthwise_convolution", "max_pool", "average_pool")
SPACE = "zyx"
PADDING = "padding_idx"  # row of an embedding that is not trained

_NORM = {
    "torch": {"scale": "weight", "offset": "bias", "mean": "running_mean", "variance": "running_var"},
    "keras": {"scale": "gamma", "offset": "beta", "mean": "moving_mean", "variance": "moving_variance"},
    "flax": {"scale": "scale", "offset": "bias", "mean": "mean", "variance": "var"},
}
_KERNEL = {"torch": "weight", "keras": "kernel", "flax": "kernel"}
_OUTPUT = {"keras": "attention_output", "flax": "out"}

Rows = dict[str, tuple[str, str]]  # native name -> role, axes


def kind_of(framework: str, module: Any) -> str:
    """Returns the kind of a layer; empty for an unknown class."""
    table = KINDS[framework]
    for cls in type(module).__mro__:
        if (found := table.get(cls.__name__)) and cls.__module__.partition(".")[0] in ("torch", "keras", "flax", "transformers"):
            if found == "pool":
                return {"max": "max_pool", "average": "average_pool"}.get(getattr(module, "pool_mode", ""), "")
            if found == "global_pool":
                return "adaptive_average_pool" if "Average" in type(module).__name__ else "adaptive_max_pool"
            if found == "activation":
                name = getattr(getattr(module, "activation", None), "__name__", "")
                return name if name in {"relu", "relu6", "gelu", "silu", "tanh", "sigmoid", "elu", "softmax"} else ""
            return found
    return ""


def roles(framework: str, kind: str, module: Any, ndim: int) -> Rows:
    """Returns the role and native axes of each variable of a kind of layer, by native name.

    Axes: i inputs, o outputs, m outputs per input, x y z space, v rows, h heads, k head size; `-y`
    is a reversed axis. ndim: rank of the kernel, or 0.
    """
    space = " ".join(SPACE[3 - (ndim - 2) :]) if ndim > 2 else ""
    kernel = _KERNEL[framework]
    if kind == "dense_io":
        return {"weight": ("kernel", "i o"), "bias": ("bias", "o")}
    if kind == "dense":
        return {kernel: ("kernel", "o i" if framework == "torch" else "i o"), "bias": ("bias", "o")}
    if kind in ("convolution", "depthwise_convolution"):
        axes = f"{space} i m" if kind == "depthwise_convolution" else f"o i {space}" if framework == "torch" else f"{space} i o"
        return {kernel: ("kernel", axes), "bias": ("bias", "o")}
    if kind == "transposed_convolution":
        turned = f"i o {space}" if framework == "torch" else f"{space} o i"
        if framework == "flax" and not getattr(module, "transpose_kernel", False):
            turned = " ".join(f"-{axis}" for axis in space.split()) + " i o"
        return {kernel: ("kernel", turned), "bias": ("bias", "o")}
    if kind == "embedding":
        return {{"torch": "weight", "keras": "embeddings", "flax": "embedding"}[framework]: ("table", "v d")}
    if kind.endswith("_norm"):
        return {name: (role, "d") for role, name in _NORM[framework].items()}
    if kind == "attention":
        return _attention(framework)
    return {}


def _attention(framework: str) -> Rows:
    if framework == "torch":
        parts = {
            f"in_proj_{end}[{name}]": (f"{name}.{role}", axes)
            for name in IN_PROJECTION
            for end, role, axes in (("weight", "kernel", "(h k) d"), ("bias", "bias", "(h k)"))
        }
        separate = {f"{letter}_proj_weight": (f"{name}.kernel", "(h k) d") for letter, name in zip("qkv", IN_PROJECTION, strict=True)}
        return parts | separate | {"out_proj.weight": ("output.kernel", "d (h k)"), "out_proj.bias": ("output.bias", "d")}
    out = _OUTPUT[framework]
    rows = {f"{name}.{end}": (f"{name}.{end}", axes) for name in IN_PROJECTION for end, axes in (("kernel", "d h k"), ("bias", "h k"))}
    return rows | {f"{out}.kernel": ("output.kernel", "h k d"), f"{out}.bias": ("output.bias", "d")}


def hyperparameters(framework: str, kind: str, module: Any) -> dict[str, Any]:
    """Returns the layer's hyperparameters that are visible as attributes.

    momentum: fraction of the running statistics kept by a step. padding: (low, high) of each axis,
    SAME or VALID.
    """
    found: dict[str, Any] = {}
    size = getattr(module, "kernel_size", None) or getattr(module, "pool_size", None) or ()
    numbered = re.search(r"([123])d$", type(module).__name__)
    # number of spatial axes of a convolution or pool
    rank = len(size) if isinstance(size, (tuple, list)) else int(numbered[1]) if numbered else 1

    def add(name: str, *attributes: str, of: Callable[[Any], Any] = lambda value: value) -> None:
        for attribute in attributes:
            value = getattr(module, attribute, None)
            if value is not None:
                found[name] = of(value)
                return

    if kind.endswith("_norm"):
        add("epsilon", "eps", "epsilon", of=float)
        add("groups", "num_groups", "groups", of=int)
        add("scale", "affine", "elementwise_affine", "scale", "use_scale", of=lambda value: value is not False)
        if framework == "flax":
            found["scale"] = getattr(module, "use_scale", True)
    if kind == "embedding":
        add(PADDING, PADDING, of=int)
    if kind == "batch_norm":
        add("momentum", "momentum", of=(lambda value: 1 - float(value)) if framework == "torch" else float)
    if kind in SPATIAL:

        def every(value: Any) -> Any:
            """Returns one number per spatial axis."""
            return [value] * rank if isinstance(value, int) else [*map(int, value)][:rank] or value

        add("kernel_size", "kernel_size", "pool_size", of=every)
        add("stride", "stride", "strides", of=every)
        add("padding", "padding", of=lambda value: _padding(value, rank))
        add("dilation", "dilation", "dilation_rate", "kernel_dilation", of=every)
    if kind == "convolution":
        add("groups", "groups", "feature_group_count", of=int)
    if kind in ("dense", "dense_io", "convolution", "transposed_convolution", "depthwise_convolution"):
        own = getattr(module, "use_bias", None)
        found["bias"] = bool(own) if own is not None else getattr(module, "bias", None) is not None
        add("activation", "activation", of=lambda value: getattr(value, "__name__", str(value)))
        found.setdefault("activation", "linear")
    if kind in ("max_pool", "average_pool") and framework == "torch":
        add("ceil_mode", "ceil_mode")
        add("count_include_pad", "count_include_pad")
    if kind == "gelu":
        add("approximate", "approximate", of=lambda value: value == "tanh")
    if kind in ("leaky_relu", "elu"):
        add("slope", "negative_slope", "alpha", of=float)
    if kind == "dropout":
        add("rate", "p", "rate", of=float)
    if kind == "attention":
        add("heads", "num_heads", "_num_heads", of=int)
    return found


# attributes without effect on the output of a layer
UNTOLD = ("name", "path", "training", "built", "trainable", "called", "name_or_path", "transformers_version")


def scalars(module: Any) -> dict[str, Any]:
    """Returns the numbers and strings in the attributes and config of a module."""
    config = getattr(module, "config", None)
    own, held = getattr(module, "__dict__", {}), getattr(config, "__dict__", {})
    return _plain(own) | {f"config.{name}": value for name, value in _plain(held).items()}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numbers and strings of a mapping and of its nested mappings."""
    found = {name.lstrip("_"): value for name, value in values.items() if isinstance(value, (bool, int, float, str))}
    for name, inner in values.items():
        if type(inner) is dict:
            found |= {f"{name.lstrip('_')}.{key}": value for key, value in inner.items() if isinstance(value, (bool, int, float, str))}
    return {name: value for name, value in found.items() if name not in UNTOLD}


def _padding(value: Any, rank: int) -> Any:
    if isinstance(value, str):
        return value.upper()
    if isinstance(value, int):
        return [[value, value]] * rank
    if isinstance(value, (tuple, list)):
        return [[part, part] if isinstance(part, int) else list(part) for part in value]
    return str(value)


def resolved(kind: str, values: Mapping[str, Any], sizes: list[int]) -> dict[str, Any]:
    """Returns the hyperparameters with SAME and VALID as numbers, for these spatial sizes."""
    padding, kernel = values.get("padding"), values.get("kernel_size")
    if kind == "transposed_convolution" or not isinstance(kernel, list) or len(kernel) != len(sizes):
        return dict(values)
    if padding == "VALID":
        return dict(values) | {"padding": [[0, 0]] * len(sizes)}
    if padding != "SAME":
        return dict(values)
    stride, dilation = values.get("stride") or kernel, values.get("dilation") or [1] * len(sizes)
    pairs = []
    for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
        total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        pairs.append([total // 2, total - total // 2])
    return dict(values) | {"padding": pairs}
