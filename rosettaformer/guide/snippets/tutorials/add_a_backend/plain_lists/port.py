# region start
"""The port: one function per component, which takes a case."""

import numpy as np

from reference_numpy.parameters import nest
from . import parts

dtypes = ("float64",)  # like Python's floats


def parameters(case):
    return nest({name: array.tolist() for name, array in case.parameters.items()})


def array(rows, *shape):
    return np.array(rows, np.float64).reshape(shape)


def softmax(case):
    return of_rows(parts.softmax, case.inputs["logits"], seen_logits(case))


def softmax_vjp(case):
    logits = case.inputs["logits"]
    return {
        "logits": of_rows(parts.softmax_vjp, logits, seen_logits(case), case.inputs["cotangent"])
    }


def seen_logits(case):
    mask = case.inputs.get("mask")  # True = present
    return np.broadcast_to(True if mask is None else mask, case.inputs["logits"].shape)


def of_rows(function, x, *others):
    """Applies the function to every row of the last axis."""
    rows = zip(*(each.reshape(-1, x.shape[-1]).tolist() for each in (x, *others)))
    return array([function(*row) for row in rows], *x.shape)


# region norm
from rosettaformer.ports import NotCovered


def no_dropout(case):
    if any(name.startswith("keep") for name in case.inputs):
        raise NotCovered("dropout is not implemented")


def layer_norm(case):
    x = case.inputs["x_btd"]
    return array(
        [parts.layer_norm(rows, parameters(case), case.config.epsilon) for rows in x.tolist()],
        *x.shape,
    )


def feed_forward(case):
    no_dropout(case)
    x = case.inputs["x_btd"]
    return array(
        [parts.feed_forward(rows, parameters(case), case.config.activation) for rows in x.tolist()],
        *x.shape,
    )


# region attention
from . import attention, model


def seen(mask, shape, causal):
    """The attention mask as lists, b h t s."""
    _, heads, targets, sources = shape
    alone = np.array(model.visible(heads, targets, [True] * sources, causal))
    return np.broadcast_to(alone if mask is None else alone & mask, shape).tolist()


def multi_head_attention(case):
    no_dropout(case)
    x, memory, bias = (case.inputs.get(name) for name in ("query_btd", "memory_bsd", "bias_bhts"))
    shape = len(x), case.config.heads, x.shape[1], memory.shape[1]
    masks = seen(case.inputs.get("mask_bhts"), shape, case.inputs.get("causal", False))
    biases = [None] * len(x) if bias is None else np.broadcast_to(bias, shape).tolist()
    answers = [
        attention.multi_head(rows, others, parameters(case), mask, added)
        for rows, others, mask, added in zip(x.tolist(), memory.tolist(), masks, biases)
    ]
    output = array([output for output, _ in answers], *x.shape)
    weights = array([weights for _, weights in answers], *shape)
    return (output, weights) if case.inputs.get("return_weights") else output


# region layers
def encoder_layer(case):
    return of_vectors(case, model.layer, "x_btd", "mask_bhts", causal=False)


def decoder_layer(case):
    return of_vectors(case, model.layer, "x_btd", "self_mask_bhts", causal=True)


def encoder(case):
    return of_vectors(case, model.stack, "x_bsd", "mask_bhts", causal=False)


def decoder(case):
    return of_vectors(case, model.stack, "x_btd", "self_mask_bhts", causal=True)


def of_vectors(case, function, name, mask_name, causal):
    no_dropout(case)
    x, memory = case.inputs[name], case.inputs.get("memory_bsd")
    (batch, targets, _), heads = x.shape, case.config.heads
    masks = seen(case.inputs.get(mask_name), (batch, heads, targets, targets), causal)
    memories = memory_masks = [None] * batch
    if memory is not None:
        memories, shape = memory.tolist(), (batch, heads, targets, memory.shape[1])
        memory_masks = seen(case.inputs.get("cross_mask_bhts"), shape, causal=False)
    rows = zip(x.tolist(), masks, memories, memory_masks)
    return array(
        [function(row, parameters(case), case.config, *others) for row, *others in rows], *x.shape
    )


# region whole
def real(case, side, letter):
    """Masks of real tokens as lists: the case's mask, or all ids except the padding id."""
    tokens, mask = case.inputs[side], case.inputs.get(f"{side}_mask_b{letter}")
    if mask is None and tokens.ndim == 2 and case.config.padding_id is not None:
        mask = tokens != case.config.padding_id
    return np.broadcast_to(True if mask is None else mask, tokens.shape[:2]).tolist()


def transformer(case):
    no_dropout(case)
    if case.config.segments:
        raise NotCovered("segments are not implemented")
    source, target = case.inputs["source"], case.inputs["target"]
    sources = (
        [(None, None)] * len(target)
        if source is None
        else zip(source.tolist(), real(case, "source", "s"))
    )
    rows = zip(target.tolist(), real(case, "target", "t"), sources)
    answers = [
        model.transformer(parameters(case), case.config, ids, there, *other)
        for ids, there, other in rows
    ]
    return array(answers, *target.shape[:2], case.config.target_vocabulary)
