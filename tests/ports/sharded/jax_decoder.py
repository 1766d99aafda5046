"""A sharded port of a whole model: an OLMo 2 decoder in plain JAX. `jax.shard_map` runs it on a mesh: heads, feed-forward and
vocabulary are split over its devices, and between the layers the tokens of each row (sequence parallelism)."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors.numpy import load_file

jax.config.update("jax_enable_x64", True)
dtypes = ("float64", "float32")

ROWS, COLUMNS, WHOLE = P("model", None), P(None, "model"), P()
SPLITS = {
    "embed_tokens.weight": ROWS, "lm_head.weight": ROWS, "q_proj.weight": ROWS, "k_proj.weight": ROWS, "v_proj.weight": ROWS,
    "q_proj.bias": P("model"), "k_proj.bias": P("model"), "v_proj.bias": P("model"), "o_proj.weight": COLUMNS, "o_proj.bias": WHOLE,
    "q_norm.weight": P("model"), "k_norm.weight": P("model"), "gate_proj.weight": ROWS, "up_proj.weight": ROWS, "down_proj.weight": COLUMNS,
    "post_attention_layernorm.weight": WHOLE, "post_feedforward_layernorm.weight": WHOLE, "norm.weight": WHOLE,
}  # fmt: skip


def split_of(name, whole_keys):
    end = ".".join(name.split(".")[-2:])
    return WHOLE if whole_keys and end[:2] in ("k_", "v_") else SPLITS[end]


def normed(scale_d, x, epsilon):
    return scale_d * x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon)


def normed_over_devices(scale_d, x, epsilon):
    """Computes the norm over features that are split over the devices."""
    squares, width = lax.psum(jnp.sum(x * x, -1, keepdims=True), "model"), lax.psum(x.shape[-1], "model")
    return scale_d * x * lax.rsqrt(squares / width + epsilon)


def rotated(x_bthk, angle_btj):
    first, second = jnp.split(x_bthk, 2, -1)
    cosine, sine = jnp.cos(angle_btj)[:, :, None], jnp.sin(angle_btj)[:, :, None]
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def gathered(x, axis=1):
    """Gathers the tokens of all devices of the row."""
    return lax.all_gather(x, "model", axis=axis, tiled=True)


def scattered(x_btd):
    """Sums over the devices and gives each its own tokens."""
    return lax.psum_scatter(x_btd, "model", scatter_dimension=1, tiled=True)


def attention(own, layer, said, x_btd, angle_btj, seen_bts):
    size, epsilon = said["head_dim"], said["rms_norm_eps"]
    query, key, value = (x_btd @ own[f"{layer}.self_attn.{name}_proj.weight"].T for name in "qkv")
    if said["attention_bias"]:
        query, key, value = (x + own[f"{layer}.self_attn.{name}_proj.bias"] for x, name in ((query, "q"), (key, "k"), (value, "v")))
    norm_of_keys = normed if said["whole_keys"] else normed_over_devices
    query = normed_over_devices(own[f"{layer}.self_attn.q_norm.weight"], query, epsilon)
    key = norm_of_keys(own[f"{layer}.self_attn.k_norm.weight"], key, epsilon)
    query, key, value = (x.reshape(*x.shape[:2], -1, size) for x in (query, key, value))
    query, key = rotated(query, angle_btj), rotated(key, angle_btj)
    each = said["num_attention_heads"] // said["num_key_value_heads"]
    own_head = query.shape[2] * lax.axis_index("model") * said["whole_keys"]
    key, value = (jnp.take(x, (own_head + jnp.arange(query.shape[2])) // each, 2) for x in (key, value))
    score = jnp.where(seen_bts[:, None], jnp.einsum("bthk,bshk->bhts", query, key) * size**-0.5, -jnp.inf)
    top = jnp.max(score, -1, keepdims=True)
    weight = jnp.exp(score - lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0)))
    weight = weight / jnp.maximum(weight.sum(-1, keepdims=True), 1e-300 if weight.dtype == jnp.float64 else 1e-37)
    mixed_btf = jnp.einsum("bhts,bshk->bthk", weight, value).reshape(*x_btd.shape[:2], -1)
    y_btd = scattered(mixed_btf @ own[f"{layer}.self_attn.o_proj.weight"].T)
    return y_btd + own[f"{layer}.self_attn.o_proj.bias"] if said["attention_bias"] else y_btd


def feed_forward(own, layer, x_btd):
    gate, up, down = (own[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return scattered((jax.nn.silu(x_btd @ gate.T) * (x_btd @ up.T)) @ down.T)


def embedded(own, token_bt):
    table_vd = own["model.embed_tokens.weight"]
    index_bt = token_bt - lax.axis_index("model") * len(table_vd)
    here_bt = (index_bt >= 0) & (index_bt < len(table_vd))
    return scattered(jnp.where(here_bt[..., None], table_vd[jnp.where(here_bt, index_bt, 0)], 0))


def positions_of(mask_bt):
    """Returns the positions of this device's tokens, counted from the first real token of the row."""
    counts_nb = lax.all_gather(mask_bt.sum(1), "model")
    before_b = jnp.where(jnp.arange(len(counts_nb))[:, None] < lax.axis_index("model"), counts_nb, 0).sum(0)
    return jnp.maximum(jnp.cumsum(mask_bt, 1) - 1 + before_b[:, None], 0)


def logits_of(own, said, token_bt, mask_bt):
    """Returns the logits of this device's part of the vocabulary, from its tokens."""
    size, epsilon, dtype = said["head_dim"], said["rms_norm_eps"], own["model.norm.weight"].dtype
    frequency_j = said["rope_parameters"]["rope_theta"] ** (-np.arange(0, size, 2) / size)
    angle_btj = (gathered(positions_of(mask_bt))[..., None] * frequency_j).astype(dtype)
    x_btd = embedded(own, gathered(token_bt))
    length = angle_btj.shape[1]
    seen_bts = jnp.tri(length, dtype=bool) & gathered(mask_bt)[:, None]
    for index in range(said["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        y_btd = attention(own, layer, said, gathered(x_btd), angle_btj, seen_bts)
        x_btd = x_btd + normed(own[f"{layer}.post_attention_layernorm.weight"], y_btd, epsilon)
        y_btd = feed_forward(own, layer, gathered(x_btd))
        x_btd = x_btd + normed(own[f"{layer}.post_feedforward_layernorm.weight"], y_btd, epsilon)
    return gathered(normed(own["model.norm.weight"], x_btd, epsilon)) @ own["lm_head.weight"].T


def loss_of(own, said, token_bt, mask_bt, label_bt, counts_bt):
    """Returns the mean of -log p over the counted labels of the whole batch."""
    logits_btv = logits_of(own, said, token_bt, mask_bt)
    first = lax.axis_index("model") * logits_btv.shape[-1]
    known_v = first + jnp.arange(logits_btv.shape[-1]) < said["vocab_size"]
    logits_btv = jnp.where(known_v, logits_btv, -jnp.inf)
    top_bt = lax.pmax(lax.stop_gradient(logits_btv).max(-1), "model")
    total_bt = lax.psum(jnp.exp(logits_btv - top_bt[..., None]).sum(-1), "model")
    is_label_btv = label_bt[..., None] == first + jnp.arange(logits_btv.shape[-1])
    label_logit_bt = lax.psum(jnp.where(is_label_btv, logits_btv, 0).sum(-1), "model")
    log_p_bt = label_logit_bt - top_bt - jnp.log(total_bt)
    return -lax.psum((log_p_bt * counts_bt).sum(), "data") / lax.psum(counts_bt.sum(), "data")


def step_of(own, said, token_bt, mask_bt, label_bt, counts_bt):
    """Returns the loss, and the gradients of this device's part of the parameters: JAX sums those of copies."""
    return jax.value_and_grad(loss_of)(own, said, token_bt, mask_bt, label_bt, counts_bt)


class Port:
    """The function that `load` returns, with its `gradients` and `training`."""

    def __init__(self, said, shapes, own, splits, devices):
        self.said, self.shapes, self.own, self.devices = said, shapes, own, devices
        self.size = dict(zip(devices.axis_names, devices.devices.shape, strict=True))
        batch, split = P("data", "model"), partial(jax.shard_map, mesh=devices)
        self.split_logits = jax.jit(
            split(lambda own, *given: logits_of(own, said, *given), in_specs=(splits, batch, batch), out_specs=P("data", None, "model"))
        )
        labels = P("data", None)
        self.split_step = jax.jit(
            split(lambda own, *given: step_of(own, said, *given), in_specs=(splits, batch, batch, labels, labels), out_specs=(P(), splits))
        )

    def padded(self, array_bt):
        """Pads the array with zeros so that the mesh divides its rows and tokens."""
        missing = [(0, -size % parts) for size, parts in zip(array_bt.shape, (self.size["data"], self.size["model"]), strict=True)]
        return np.pad(array_bt, missing)

    def whole(self, gradients):
        return {name: array[tuple(map(slice, self.shapes[name]))] for name, array in gradients.items()}

    def logits(self, own, token_bt, mask_bt):
        rows, length = token_bt.shape
        return self.split_logits(own, self.padded(token_bt), self.padded(mask_bt))[:rows, :length, : self.said["vocab_size"]]

    def __call__(self, token_bt, mask_bt):
        return self.logits(self.own, token_bt, mask_bt)

    def gradients(self, token_bt, mask_bt, cotangent_btv):
        return self.whole(jax.grad(lambda own: (self.logits(own, token_bt, mask_bt) * cotangent_btv).sum())(self.own))

    def training(self, token_bt, mask_bt):
        given = (token_bt[:, :-1], mask_bt[:, :-1], token_bt[:, 1:], mask_bt[:, :-1] & mask_bt[:, 1:])
        loss, gradients = self.split_step(self.own, *map(self.padded, given))
        return loss, self.whole(gradients)


def load(folder, mesh):
    axes = {"axis_shapes": (mesh.data, mesh.model), "axis_names": ("data", "model"), "axis_types": (AxisType.Auto,) * 2}
    devices = jax.make_mesh(**axes, devices=jax.devices()[: mesh.devices])
    said = json.loads(Path(folder, "config.json").read_text())
    said["head_dim"] = said["hidden_size"] // said["num_attention_heads"]
    said["whole_keys"] = said["num_key_value_heads"] % mesh.model > 0
    tensors = load_file(Path(folder, "model.safetensors"))
    splits = {name: split_of(name, said["whole_keys"]) for name in tensors}
    own = {}
    for name, array in tensors.items():  # a vocabulary that the devices do not divide also has rows of zeros
        missing = -len(array) % mesh.model if "embed" in name or "head" in name else 0
        own[name] = jax.device_put(np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1)), NamedSharding(devices, splits[name]))
    return Port(said, {name: array.shape for name, array in tensors.items()}, own, splits, devices)
