"""A textbook decoder-only model in PyTorch. `rosettaformer check port_decoder.py` checks it.

It has RMS norms, rotary positions, shared key heads, windows and caps. config: a TransformerConfig.
"""

import math

import plain_pytorch as plain
import torch
from plain_pytorch import causal_mask, linear, soft_cap, softmax, window_mask


def rms_norm(parameters, x_btd, epsilon, one_plus_scale):
    mean_square_bt1 = torch.mean(x_btd**2, dim=-1, keepdim=True)
    scale_d = 1 + parameters["scale"] if one_plus_scale else parameters["scale"]
    return x_btd / torch.sqrt(mean_square_bt1 + epsilon) * scale_d


def norm(parameters, x_btd, config):
    return rms_norm(parameters, x_btd, config.epsilon, config.norm_one_plus_scale)


def yarn_bounds(size, base, scaling):
    turns = torch.tensor([scaling.beta_fast, scaling.beta_slow])
    waves = torch.log(scaling.original_length / (2 * math.pi * turns))
    first, last = size * waves / (2 * math.log(base))
    if scaling.truncate:
        first, last = torch.floor(first), torch.ceil(last)
    return max(first, 0), min(last, size - 1)


def rotary_frequencies(size, base, scaling, length):
    if scaling.kind == "dynamic":
        growth = scaling.factor * max(length / scaling.original_length, 1) - scaling.factor + 1
        base = base * growth ** (size / (size - 2))
    pair_j = torch.arange(size // 2)
    frequency_j = base ** (-2 * pair_j / size)
    if scaling.kind == "linear":
        return frequency_j / scaling.factor
    if scaling.kind == "longrope":
        long = length > scaling.original_length
        return frequency_j / torch.tensor(scaling.long_factors if long else scaling.short_factors)
    if scaling.kind == "llama3":
        turns_j = frequency_j * scaling.original_length / (2 * math.pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        kept_j = torch.clamp((turns_j - low) / (high - low), 0, 1)
        return frequency_j * kept_j + frequency_j / scaling.factor * (1 - kept_j)
    if scaling.kind == "yarn":
        first, last = yarn_bounds(size, base, scaling)
        kept_j = 1 - torch.clamp((pair_j - first) / (last - first), 0, 1)
        return frequency_j * kept_j + frequency_j / scaling.factor * (1 - kept_j)
    return frequency_j


def rotary_embedding(x_bthk, position_bt, config, layer):
    kind, size = config.layer_kind(layer), config.rotary_size
    frequency_j = rotary_frequencies(size, kind.base, kind.scaling, int(position_bt.max()) + 1)
    angle_bt1j = position_bt[:, :, None, None] * frequency_j
    factor = kind.scaling.attention_factor or 1
    cosine, sine = factor * torch.cos(angle_bt1j), factor * torch.sin(angle_bt1j)
    first, second = x_bthk[..., : size // 2], x_bthk[..., size // 2 : size]
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return torch.cat([*turned, x_bthk[..., size:]], dim=-1)


def scaled_dot_product_attention(query_bthk, key_bsgk, value_bsge, mask_bhts, scale=None, cap=None):
    shared = query_bthk.shape[2] // key_bsgk.shape[2]
    key_bshk = torch.repeat_interleave(key_bsgk, shared, dim=2)
    value_bshe = torch.repeat_interleave(value_bsge, shared, dim=2)
    scale = query_bthk.shape[-1] ** -0.5 if scale is None else scale
    logits_bhts = scale * torch.einsum("bthk,bshk->bhts", query_bthk, key_bshk)
    if cap is not None:
        logits_bhts = soft_cap(logits_bhts, cap)
    weights_bhts = softmax(logits_bhts, mask_bhts)
    return torch.einsum("bhts,bshe->bthe", weights_bhts, value_bshe)


def query_key_norm(parameters, x_bthk, config):
    axes = -1 if config.query_key_norm == "head" else (-2, -1)
    mean_square = torch.mean(x_bthk**2, dim=axes, keepdim=True)
    scale = 1 + parameters["scale"] if config.norm_one_plus_scale else parameters["scale"]
    return x_bthk / torch.sqrt(mean_square + config.epsilon) * scale


def multi_head_attention(parameters, query_btd, memory_bsd, mask_bhts, position_bt, config, layer):
    query_bthk = linear("btd,dhk->bthk", parameters["query"], query_btd)
    key_bsgk = linear("bsd,dgk->bsgk", parameters["key"], memory_bsd)
    value_bsge = linear("bsd,dge->bsge", parameters["value"], memory_bsd)
    if config.query_key_norm != "none":
        query_bthk = query_key_norm(parameters["query_norm"], query_bthk, config)
        key_bsgk = query_key_norm(parameters["key_norm"], key_bsgk, config)
    kind = config.layer_kind(layer)
    if kind.rotary:
        query_bthk = rotary_embedding(query_bthk, position_bt, config, layer)
        key_bsgk = rotary_embedding(key_bsgk, position_bt, config, layer)
    if kind.window:
        mask_bhts = mask_bhts & window_mask(query_btd.shape[1], memory_bsd.shape[1], kind.window)
    scores = mask_bhts, config.score_scale, config.score_cap
    output_bthe = scaled_dot_product_attention(query_bthk, key_bsgk, value_bsge, *scores)
    return linear("bthe,hed->btd", parameters["output"], output_bthe)


def residual(parameters, name, x_btd, config, sublayer):
    placement = config.norm_placement
    y_btd = x_btd if placement == "after" else norm(parameters[f"{name}_norm"], x_btd, config)
    y_btd = sublayer(y_btd)
    if placement == "after":
        y_btd = norm(parameters[f"{name}_norm"], y_btd, config)
    if placement == "sandwich":
        y_btd = norm(parameters[f"{name}_output_norm"], y_btd, config)
    return x_btd + y_btd


def decoder_layer(parameters, config, x_btd, self_mask_bhts, position_bt, layer):
    mask_bhts = self_mask_bhts & causal_mask(x_btd.shape[1], x_btd.shape[1])

    def attend(y_btd):
        place = mask_bhts, position_bt, config, layer
        return multi_head_attention(parameters["self_attention"], y_btd, y_btd, *place)

    def network(y_btd):
        activation = getattr(plain, config.activation)
        return plain.gated_feed_forward(parameters["feed_forward"], y_btd, activation)

    x_btd = residual(parameters, "self_attention", x_btd, config, attend)
    return residual(parameters, "feed_forward", x_btd, config, network)


def decoder(parameters, config, x_btd, self_mask_bhts, position_bt):
    for layer, layer_parameters in enumerate(parameters["layers"].values()):
        x_btd = decoder_layer(layer_parameters, config, x_btd, self_mask_bhts, position_bt, layer)
    return norm(parameters["final_norm"], x_btd, config)


def logits(parameters, x_btd, scale, cap=None):
    logits_btv = scale * linear("btd,dv->btv", parameters, x_btd)
    return logits_btv if cap is None else soft_cap(logits_btv, cap)


def transformer(parameters, config, target):
    mask_bt = torch.ones(target.shape, dtype=torch.bool)
    if config.padding_id is not None:
        mask_bt = plain.token_mask(target, config.padding_id)
    mask_bhts, position_bt = plain.padding_mask(mask_bt), plain.token_positions(mask_bt)
    x_btd = plain.embedding(parameters["target_embedding"], target, config.scale_embedding)
    x_btd = decoder(parameters["decoder"], config, x_btd, mask_bhts, position_bt)
    return logits(parameters["logits"], x_btd, config.logit_scale, config.logit_cap)
