"""A sharded port of training steps: GPT-2 in plain JAX; each device of `data` has its rows of the batch and its part of parameters and
moments (ZeRO stage 3). `jax.shard_map` gathers the parameters, `lax.psum_scatter` sums the gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from reference_numpy.sharding import splits

jax.config.update("jax_enable_x64", True)
dtypes = ("float64", "float32")


def dropped(x, keep, rate):
    return jnp.where(keep, x / (1 - rate), 0)


def normed(own, name, x, epsilon):
    deviation = x - x.mean(-1, keepdims=True)
    x = deviation * lax.rsqrt((deviation * deviation).mean(-1, keepdims=True) + epsilon)
    return x * own[f"{name}.scale"] + own[f"{name}.offset"]


def attention(own, name, config, x_btd, seen_bts, keep):
    query, key, value = (
        jnp.einsum("btd,dhk->bthk", x_btd, own[f"{name}.{part}.kernel"]) + own[f"{name}.{part}.bias"] for part in ("query", "key", "value")
    )
    score = jnp.einsum("bthk,bshk->bhts", query, key) * config.key_size**-0.5
    weight = jax.nn.softmax(jnp.where(seen_bts[:, None], score, -1e30), -1) * seen_bts[:, None].any(-1, keepdims=True)
    weight = dropped(weight, keep[f"{name}.weights_dropout"], config.attention_dropout_rate)
    mixed = jnp.einsum("bhts,bshe->bthe", weight, value)
    return jnp.einsum("bthe,hed->btd", mixed, own[f"{name}.output.kernel"]) + own[f"{name}.output.bias"]


def feed_forward(own, name, config, x_btd, keep):
    hidden = jax.nn.gelu(x_btd @ own[f"{name}.hidden.kernel"] + own[f"{name}.hidden.bias"], approximate=True)
    hidden = dropped(hidden, keep[f"{name}.hidden_dropout"], config.hidden_dropout_rate)
    return hidden @ own[f"{name}.output.kernel"] + own[f"{name}.output.bias"]


def logits_of(own, config, token_bt, keep):
    table_vd = own["target_embedding.table"]
    x_btd = table_vd[token_bt] + own["target_position_embedding.table"][: token_bt.shape[1]]
    x_btd = dropped(x_btd, keep["decoder.embedding_dropout"], config.dropout_rate)
    seen_bts = jnp.tri(token_bt.shape[1], dtype=bool) & (token_bt != config.padding_id)[:, None]
    for layer in range(config.decoder_layers):
        name = f"decoder.layers.{layer}.self_attention"
        y_btd = attention(own, name, config, normed(own, f"{name}_norm", x_btd, config.epsilon), seen_bts, keep)
        x_btd = x_btd + dropped(y_btd, keep[f"{name}_dropout"], config.dropout_rate)
        name = f"decoder.layers.{layer}.feed_forward"
        y_btd = feed_forward(own, name, config, normed(own, f"{name}_norm", x_btd, config.epsilon), keep)
        x_btd = x_btd + dropped(y_btd, keep[f"{name}_dropout"], config.dropout_rate)
    return normed(own, "decoder.final_norm", x_btd, config.epsilon) @ table_vd.T


def loss_of(own, config, recipe, target, keep):
    """Returns the contribution of the device's rows to the loss."""
    label_bt, counts_bt = target[:, 1:], target[:, 1:] != config.padding_id
    log_p_btv = jax.nn.log_softmax(logits_of(own, config, target[:, :-1], keep))
    true_bt = jnp.take_along_axis(log_p_btv, label_bt[..., None], -1)[..., 0]
    loss_bt = -(1 - recipe["smoothing"]) * true_bt - recipe["smoothing"] * log_p_btv.mean(-1)
    return (loss_bt * counts_bt).sum() / lax.psum(counts_bt.sum(), "data")


def place_of(split):
    """Returns the axis that data splits; None if there is none."""
    return next((axis for axis, place in enumerate(split) if place == "data"), None)


def whole(own, places):
    return {name: x if places[name] is None else lax.all_gather(x, "data", axis=places[name], tiled=True) for name, x in own.items()}


def added(gradients, places):
    """Sums over the devices and gives each its part."""
    return {
        name: lax.psum(x, "data") if (axis := places[name]) is None else lax.psum_scatter(x, "data", scatter_dimension=axis, tiled=True)
        for name, x in gradients.items()
    }


def clipped(gradients, places, limit):
    """Clips gradients that are split over the devices by their global norm."""
    square = sum((x * x).sum() for name, x in gradients.items() if places[name] is not None)
    copies = sum((x * x).sum() for name, x in gradients.items() if places[name] is None)
    norm = jnp.sqrt(lax.psum(square, "data") + copies)
    return {name: x * jnp.minimum(1, limit / norm) for name, x in gradients.items()}


def step_of(config, recipe, places, count, state, target, keep):
    own, first, second = state
    value, gradients = jax.value_and_grad(loss_of)(whole(own, places), config, recipe, target, keep)
    gradients = added(gradients, places)
    if recipe["clip_norm"] is not None:
        gradients = clipped(gradients, places, recipe["clip_norm"])
    rate = config.model_width**-0.5 * jnp.minimum(count**-0.5, count * recipe["warmup"] ** -1.5)
    updated = [{}, {}, {}]
    for name, g in gradients.items():
        m = recipe["beta_1"] * first[name] + (1 - recipe["beta_1"]) * g
        v = recipe["beta_2"] * second[name] + (1 - recipe["beta_2"]) * g * g
        update = m / (1 - recipe["beta_1"] ** count) / (jnp.sqrt(v / (1 - recipe["beta_2"] ** count)) + recipe["epsilon"])
        decay = recipe["weight_decay"] if name.endswith(("kernel", "table")) else 0
        updated[0][name], updated[1][name], updated[2][name] = own[name] - rate * (update + decay * own[name]), m, v
    return lax.psum(value, "data"), tuple(updated)


def filled(array, parts):
    """Pads the array with rows so that the devices divide them."""
    return np.pad(array, [(0, -len(array) % parts)] + [(0, 0)] * (array.ndim - 1))


def on_mesh(case):
    """Returns the losses and the parameters of training steps, on a mesh of only `data`."""
    if case.component != "training_steps" or case.mesh.model > 1 or case.config.activation != "gelu_tanh" or case.config.encoder_layers:
        raise NotImplementedError("only steps of GPT-2 are given, on a mesh of data")
    axes = {"axis_shapes": (case.mesh.data,), "axis_names": ("data",), "axis_types": (AxisType.Auto,)}
    devices = jax.make_mesh(**axes, devices=jax.devices()[: case.mesh.data])
    split = {name: P(*places) for name, places in splits(case.config, case.mesh).items()}
    places = {name: place_of(places) for name, places in split.items()}
    recipe = {name.partition(".")[2]: value for name, value in case.inputs.items() if name.startswith("recipe.")}
    masks = {name.partition(".")[2]: value for name, value in case.inputs.items() if name.startswith("keep.")}
    own = {name: jax.device_put(value, NamedSharding(devices, split[name])) for name, value in case.parameters.items()}
    state, losses = (own, *({name: jnp.zeros_like(value) for name, value in own.items()} for _ in range(2))), []
    step = jax.jit(
        jax.shard_map(
            partial(step_of, case.config, recipe, places), mesh=devices, check_vma=False,
            in_specs=(P(), (split,) * 3, P("data"), P("data")), out_specs=(P(), (split,) * 3),
        )
    )  # fmt: skip
    for index, target in enumerate(case.inputs["target"]):
        keep = {name: filled(mask[index], case.mesh.data) for name, mask in masks.items()}
        count = jnp.asarray(index + 1.0, own["decoder.final_norm.scale"].dtype)
        loss, state = step(count, state, filled(target, case.mesh.data), keep)
        losses.append(loss)
    return {"losses": jnp.stack(losses), **{f"parameters.{name}": value for name, value in state[0].items()}}
