"""Textbook versions of every component in JAX. `rosettaformer check port_flax.py` checks them."""

import math

import jax
import jax.numpy as jnp
import numpy as np


def linear(equation, parameters, x):
    y = jnp.einsum(equation, x, parameters["kernel"])
    return y + parameters["bias"] if "bias" in parameters else y


def embedding(parameters, token, scale):
    x_btd = parameters["table"][token]
    return x_btd * x_btd.shape[-1] ** 0.5 if scale else x_btd


def segment_embedding(parameters, segment_bs):
    return parameters["table"][segment_bs]


def token_positions(mask_bt):
    begun_bt = jnp.cumsum(mask_bt, axis=1) > 0
    return jnp.maximum(jnp.cumsum(begun_bt, axis=1) - 1, 0)


def position_embedding(parameters, position_bt, offset):
    return parameters["table"][position_bt + offset]


def positional_encoding(position_bt, width):
    feature_d = np.arange(width)
    frequency_d = 10000.0 ** (-2 * (feature_d // 2) / width)
    angle_btd = position_bt[:, :, None] * frequency_d
    return jnp.where(feature_d % 2 == 0, jnp.sin(angle_btd), jnp.cos(angle_btd))


def rotary_halves(x_bthk, position_bt, base):
    pairs = x_bthk.shape[-1] // 2
    frequency_j = 1 / base ** (np.arange(pairs) / pairs)
    angle_bt1j = position_bt[:, :, None, None] * frequency_j
    cosine, sine = jnp.cos(angle_bt1j), jnp.sin(angle_bt1j)
    first, second = x_bthk[..., :pairs], x_bthk[..., pairs:]
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, axis=-1)


def rotary_neighbours(x_bthk, position_bt, base):
    pairs = x_bthk.shape[-1] // 2
    frequency_j = 1 / base ** (np.arange(pairs) / pairs)
    angle_bt1j = position_bt[:, :, None, None] * frequency_j
    cosine, sine = jnp.cos(angle_bt1j), jnp.sin(angle_bt1j)
    first, second = x_bthk[..., 0::2], x_bthk[..., 1::2]
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.stack(turned, axis=-1).reshape(x_bthk.shape)


def alibi_bias(heads, target_length, source_length):
    slope_h11 = 2.0 ** (-8 * jnp.arange(1, heads + 1) / heads)[:, None, None]
    query_t1 = jnp.arange(target_length)[:, None] + source_length - target_length
    distance_ts = jnp.abs(query_t1 - jnp.arange(source_length))
    return (-slope_h11 * distance_ts)[None]


def token_mask(token, padding_id):
    return token != padding_id


def padding_mask(mask_bs):
    return mask_bs[:, None, None, :]


def causal_mask(target_length, source_length):
    query_t1 = jnp.arange(target_length)[:, None] + source_length - target_length
    key_s = jnp.arange(source_length)
    return (key_s <= query_t1)[None, None]


def window_mask(target_length, source_length, window):
    query_t1 = jnp.arange(target_length)[:, None] + source_length - target_length
    key_s = jnp.arange(source_length)
    return (jnp.abs(query_t1 - key_s) < window)[None, None]


def combine_masks(mask_bhts, other_bhts):
    return mask_bhts & other_bhts


def softmax(logits, mask=None):
    if mask is not None:
        logits = jnp.where(mask, logits, -1e30)
    exponential = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    weights = exponential / jnp.sum(exponential, axis=-1, keepdims=True)
    return weights if mask is None else jnp.where(mask, weights, 0.0)


def soft_cap(x, cap):
    return cap * jnp.tanh(x / cap)


def scaled_dot_product_attention(query_bthk, key_bsgk, value_bsge, mask_bhts=None, bias_bhts=None):
    shared = query_bthk.shape[2] // key_bsgk.shape[2]
    key_bshk = jnp.repeat(key_bsgk, shared, axis=2)
    value_bshe = jnp.repeat(value_bsge, shared, axis=2)
    logits_bhts = jnp.einsum("bthk,bshk->bhts", query_bthk, key_bshk) / query_bthk.shape[-1] ** 0.5
    if bias_bhts is not None:
        logits_bhts = logits_bhts + bias_bhts
    weights_bhts = softmax(logits_bhts, mask_bhts)
    return jnp.einsum("bhts,bshe->bthe", weights_bhts, value_bshe)


def attention_with_sink(query_bthk, key_bsgk, value_bsge, mask_bhts, sink_h):
    shared = query_bthk.shape[2] // key_bsgk.shape[2]
    key_bshk = jnp.repeat(key_bsgk, shared, axis=2)
    value_bshe = jnp.repeat(value_bsge, shared, axis=2)
    logits_bhts = jnp.einsum("bthk,bshk->bhts", query_bthk, key_bshk) / query_bthk.shape[-1] ** 0.5
    sink_bht1 = jnp.broadcast_to(sink_h[:, None, None], (*logits_bhts.shape[:3], 1))
    logits_bhtn = jnp.concatenate([logits_bhts, sink_bht1], axis=-1)
    mask_bhtn = jnp.concatenate([mask_bhts, jnp.ones_like(mask_bhts[..., :1])], axis=-1)
    weights_bhtn = softmax(logits_bhtn, mask_bhtn)
    return jnp.einsum("bhts,bshe->bthe", weights_bhtn[..., :-1], value_bshe)


def multi_head_attention(parameters, query_btd, memory_bsd, mask_bhts=None, bias_bhts=None):
    query_bthk = linear("btd,dhk->bthk", parameters["query"], query_btd)
    key_bsgk = linear("bsd,dgk->bsgk", parameters["key"], memory_bsd)
    value_bsge = linear("bsd,dge->bsge", parameters["value"], memory_bsd)
    output_bthe = scaled_dot_product_attention(query_bthk, key_bsgk, value_bsge, mask_bhts, bias_bhts)
    return linear("bthe,hed->btd", parameters["output"], output_bthe)


def relu(x):
    return jnp.maximum(x, 0.0)


def relu_squared(x):
    return relu(x) ** 2


def gelu_erf(x):
    return x / 2 * (1 + jax.lax.erf(x / 2**0.5))


def gelu_tanh(x):
    return x / 2 * (1 + jnp.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))


def gelu_sigmoid(x):
    return x / (1 + jnp.exp(-1.702 * x))


def silu(x):
    return x / (1 + jnp.exp(-x))


def feed_forward(parameters, x_btd, activation):
    hidden_btf = activation(linear("btd,df->btf", parameters["hidden"], x_btd))
    return linear("btf,fd->btd", parameters["output"], hidden_btf)


def gated_feed_forward(parameters, x_btd, activation):
    gate_btf = activation(linear("btd,df->btf", parameters["gate"], x_btd))
    hidden_btf = linear("btd,df->btf", parameters["hidden"], x_btd)
    return linear("btf,fd->btd", parameters["output"], gate_btf * hidden_btf)


def limited_feed_forward(parameters, x_btd, activation, limit, offset):
    gate_btf = jnp.minimum(linear("btd,df->btf", parameters["gate"], x_btd), limit)
    hidden_btf = jnp.clip(linear("btd,df->btf", parameters["hidden"], x_btd), -limit, limit)
    product_btf = activation(gate_btf) * (hidden_btf + offset)
    return linear("btf,fd->btd", parameters["output"], product_btf)


def largest(scores, count):
    order = jnp.argsort(-scores, axis=-1, stable=True)
    return jnp.argsort(order, axis=-1) < count


def softmax_router(parameters, x_btd, count, normalize):
    score_btx = softmax(linear("btd,dx->btx", parameters, x_btd))
    weight_btx = jnp.where(largest(score_btx, count), score_btx, 0.0)
    return weight_btx / jnp.sum(weight_btx, axis=-1, keepdims=True) if normalize else weight_btx


def chosen_softmax_router(parameters, x_btd, count):
    logits_btx = linear("btd,dx->btx", parameters, x_btd)
    return softmax(logits_btx, largest(logits_btx, count))


def in_best_groups(score_btx, groups, kept):
    grouped_btgn = score_btx.reshape(*score_btx.shape[:2], groups, -1)
    best_btgn = jnp.sort(grouped_btgn, axis=-1)[..., -2:]
    kept_btg = largest(jnp.sum(best_btgn, axis=-1), kept)
    return jnp.repeat(kept_btg, grouped_btgn.shape[-1], axis=-1)


def sigmoid_router(parameters, x_btd, count, groups, kept, outside, scale):
    score_btx = jax.nn.sigmoid(linear("btd,dx->btx", parameters, x_btd))
    biased_btx = score_btx + parameters["selection_bias"]
    inside_btx = in_best_groups(biased_btx, groups, kept)
    chosen_btx = largest(jnp.where(inside_btx, biased_btx, outside), count)
    weight_btx = jnp.where(chosen_btx, score_btx, 0.0)
    return scale * weight_btx / (jnp.sum(weight_btx, axis=-1, keepdims=True) + 1e-20)


def expert(parameters, index):
    return {name: {leaf: p[index] for leaf, p in layer.items()} for name, layer in parameters.items()}


def mixture_of_experts(parameters, x_btd, router, network):
    weight_btx = router(parameters["router"], x_btd)
    y_btd = jnp.zeros_like(x_btd)
    for index in range(weight_btx.shape[-1]):
        weight_bt1 = weight_btx[:, :, index, None]
        y_btd = y_btd + weight_bt1 * network(expert(parameters["experts"], index), x_btd)
    if "shared" in parameters:
        shared_btd = network(parameters["shared"], x_btd)
        if "shared_gate" in parameters:
            gate_bt = linear("btd,d->bt", parameters["shared_gate"], x_btd)
            shared_btd = jax.nn.sigmoid(gate_bt[:, :, None]) * shared_btd
        y_btd = y_btd + shared_btd
    return y_btd


def layer_norm(parameters, x_btd, epsilon):
    centred_btd = x_btd - jnp.mean(x_btd, axis=-1, keepdims=True)
    variance_bt1 = jnp.mean(centred_btd**2, axis=-1, keepdims=True)
    normalised_btd = centred_btd / jnp.sqrt(variance_bt1 + epsilon)
    return normalised_btd * parameters["scale"] + parameters["offset"]


def rms_norm(parameters, x_btd, epsilon):
    mean_square_bt1 = jnp.mean(x_btd**2, axis=-1, keepdims=True)
    normalised_btd = x_btd / jnp.sqrt(mean_square_bt1 + epsilon)
    return normalised_btd * parameters["scale"]


def dropout(x, keep, rate):
    return jnp.where(keep, x / (1 - rate), 0.0)


def random_dropout(x, seed, rate):
    keep = jax.random.uniform(jax.random.key(seed), x.shape) >= rate
    return dropout(x, keep, rate)


def pre_norm_encoder_layer(parameters, x_btd, mask_bhts, epsilon, activation):
    normed_btd = layer_norm(parameters["self_attention_norm"], x_btd, epsilon)
    x_btd = x_btd + multi_head_attention(parameters["self_attention"], normed_btd, normed_btd, mask_bhts)
    normed_btd = layer_norm(parameters["feed_forward_norm"], x_btd, epsilon)
    return x_btd + feed_forward(parameters["feed_forward"], normed_btd, activation)


def post_norm_encoder_layer(parameters, x_btd, mask_bhts, epsilon, activation):
    x_btd = x_btd + multi_head_attention(parameters["self_attention"], x_btd, x_btd, mask_bhts)
    x_btd = layer_norm(parameters["self_attention_norm"], x_btd, epsilon)
    x_btd = x_btd + feed_forward(parameters["feed_forward"], x_btd, activation)
    return layer_norm(parameters["feed_forward_norm"], x_btd, epsilon)


def pre_norm_decoder_layer(parameters, x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, epsilon, activation):
    normed_btd = layer_norm(parameters["self_attention_norm"], x_btd, epsilon)
    x_btd = x_btd + multi_head_attention(parameters["self_attention"], normed_btd, normed_btd, self_mask_bhts)
    if memory_bsd is not None:
        normed_btd = layer_norm(parameters["cross_attention_norm"], x_btd, epsilon)
        x_btd = x_btd + multi_head_attention(parameters["cross_attention"], normed_btd, memory_bsd, cross_mask_bhts)
    normed_btd = layer_norm(parameters["feed_forward_norm"], x_btd, epsilon)
    return x_btd + feed_forward(parameters["feed_forward"], normed_btd, activation)


def post_norm_decoder_layer(parameters, x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, epsilon, activation):
    x_btd = x_btd + multi_head_attention(parameters["self_attention"], x_btd, x_btd, self_mask_bhts)
    x_btd = layer_norm(parameters["self_attention_norm"], x_btd, epsilon)
    if memory_bsd is not None:
        x_btd = x_btd + multi_head_attention(parameters["cross_attention"], x_btd, memory_bsd, cross_mask_bhts)
        x_btd = layer_norm(parameters["cross_attention_norm"], x_btd, epsilon)
    x_btd = x_btd + feed_forward(parameters["feed_forward"], x_btd, activation)
    return layer_norm(parameters["feed_forward_norm"], x_btd, epsilon)


def encoder(parameters, x_bsd, mask_bhts, epsilon, activation, layer):
    for layer_parameters in parameters["layers"].values():
        x_bsd = layer(layer_parameters, x_bsd, mask_bhts, epsilon, activation)
    return layer_norm(parameters["final_norm"], x_bsd, epsilon) if "final_norm" in parameters else x_bsd


def decoder(parameters, x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, epsilon, activation, layer):
    for layer_parameters in parameters["layers"].values():
        x_btd = layer(layer_parameters, x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, epsilon, activation)
    return layer_norm(parameters["final_norm"], x_btd, epsilon) if "final_norm" in parameters else x_btd


def logits(parameters, x_btd):
    return linear("btd,dv->btv", parameters, x_btd)


def pooler(parameters, x_bsd):
    return jnp.tanh(linear("bd,dr->br", parameters, x_bsd[:, 0]))


def classifier(parameters, pooled_br):
    return linear("br,rc->bc", parameters, pooled_br)


def masked_language_head(parameters, x_bsd, epsilon, activation):
    hidden_bsr = activation(linear("bsd,dr->bsr", parameters["hidden"], x_bsd))
    normed_bsr = layer_norm(parameters["norm"], hidden_bsr, epsilon)
    return linear("bsr,rv->bsv", parameters["logits"], normed_bsr)


def encode(parameters, source, source_mask_bs, epsilon):
    x_bsd = embedding(parameters["source_embedding"], source, True)
    x_bsd = x_bsd + positional_encoding(token_positions(source_mask_bs), x_bsd.shape[-1])
    mask_bhts = padding_mask(source_mask_bs)
    return encoder(parameters["encoder"], x_bsd, mask_bhts, epsilon, relu, post_norm_encoder_layer)


def decode(parameters, target, target_mask_bt, memory_bsd, source_mask_bs, epsilon):
    x_btd = embedding(parameters["target_embedding"], target, True)
    x_btd = x_btd + positional_encoding(token_positions(target_mask_bt), x_btd.shape[-1])
    causal_bhts = causal_mask(target.shape[1], target.shape[1])
    self_mask_bhts = combine_masks(padding_mask(target_mask_bt), causal_bhts)
    cross_mask_bhts = padding_mask(source_mask_bs)
    masks = self_mask_bhts, cross_mask_bhts
    x_btd = decoder(parameters["decoder"], x_btd, memory_bsd, *masks, epsilon, relu, post_norm_decoder_layer)
    return logits(parameters["logits"], x_btd)


def transformer(parameters, source, target, padding_id, epsilon):
    source_mask_bs = token_mask(source, padding_id)
    target_mask_bt = token_mask(target, padding_id)
    memory_bsd = encode(parameters, source, source_mask_bs, epsilon)
    return decode(parameters, target, target_mask_bt, memory_bsd, source_mask_bs, epsilon)


def training_loss(parameters, source, target, padding_id, epsilon, smoothing):
    input_bt, label_bt = target[:, :-1], target[:, 1:]
    logits_btv = transformer(parameters, source, input_bt, padding_id, epsilon)
    return cross_entropy(logits_btv, label_bt, token_mask(label_bt, padding_id), smoothing)


def encode_bert(parameters, source, source_mask_bs, segment_bs, epsilon, activation):
    position_1s = jnp.arange(source.shape[1])[None]
    x_bsd = embedding(parameters["source_embedding"], source, False)
    x_bsd = x_bsd + position_embedding(parameters["source_position_embedding"], position_1s, 0)
    x_bsd = x_bsd + segment_embedding(parameters["source_segment_embedding"], segment_bs)
    x_bsd = layer_norm(parameters["source_embedding_norm"], x_bsd, epsilon)
    mask_bhts = padding_mask(source_mask_bs)
    return encoder(parameters["encoder"], x_bsd, mask_bhts, epsilon, activation, post_norm_encoder_layer)


def pool(parameters, source, source_mask_bs, segment_bs, epsilon, activation):
    x_bsd = encode_bert(parameters, source, source_mask_bs, segment_bs, epsilon, activation)
    return pooler(parameters["pooler"], x_bsd)


def classify(parameters, source, source_mask_bs, segment_bs, epsilon, activation):
    pooled_br = pool(parameters, source, source_mask_bs, segment_bs, epsilon, activation)
    return classifier(parameters["classifier"], pooled_br)


def masked_language_logits(parameters, source, source_mask_bs, segment_bs, epsilon, activation):
    x_bsd = encode_bert(parameters, source, source_mask_bs, segment_bs, epsilon, activation)
    return masked_language_head(parameters["masked_language_head"], x_bsd, epsilon, activation)


def classification_loss(parameters, source, label_b, source_mask_bs, segment_bs, epsilon, activation, smoothing):
    logits_bc = classify(parameters, source, source_mask_bs, segment_bs, epsilon, activation)
    counted_b1 = label_b[:, None] >= 0
    return cross_entropy(logits_bc[:, None], label_b[:, None], counted_b1, smoothing)


def cross_entropy(logits_btv, label_bt, mask_bt, smoothing):
    shifted_btv = logits_btv - jnp.max(logits_btv, axis=-1, keepdims=True)
    log_p_btv = shifted_btv - jnp.log(jnp.sum(jnp.exp(shifted_btv), axis=-1, keepdims=True))
    true_bt = jnp.take_along_axis(log_p_btv, label_bt[:, :, None], axis=-1)[:, :, 0]
    loss_bt = -(1 - smoothing) * true_bt - smoothing * jnp.mean(log_p_btv, axis=-1)
    return jnp.sum(jnp.where(mask_bt, loss_bt, 0.0)) / jnp.sum(mask_bt)


def router_loss(logits_lbtx, per_token, mask_bt, router_aux_weight, router_z_weight):
    share_bt1 = mask_bt[:, :, None] / (logits_lbtx.shape[0] * jnp.sum(mask_bt))
    f_x = jnp.sum(largest(logits_lbtx, per_token) * share_bt1, axis=(0, 1, 2))
    p_x = jnp.sum(softmax(logits_lbtx) * share_bt1, axis=(0, 1, 2))
    log_z_lbt = jnp.log(jnp.sum(jnp.exp(logits_lbtx), axis=-1))
    z = jnp.sum(log_z_lbt**2 * share_bt1[:, :, 0])
    return router_aux_weight * len(f_x) * jnp.sum(f_x * p_x) + router_z_weight * z


def adam(p, g, m, v, step, learning_rate, beta_1, beta_2, epsilon, weight_decay):
    m = beta_1 * m + (1 - beta_1) * g
    v = beta_2 * v + (1 - beta_2) * g * g
    m_hat = m / (1 - beta_1**step)
    v_hat = v / (1 - beta_2**step)
    p = p - learning_rate * (m_hat / (jnp.sqrt(v_hat) + epsilon) + weight_decay * p)
    return p, m, v


def clip_global_norm(gradients, limit):
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in gradients))
    factor = jnp.minimum(1.0, limit / norm)
    return [g * factor for g in gradients]


def noam(step, width, warmup):
    return width**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)


def initial_kernel(seed, shape, fan_in, fan_out):
    limit = (6 / (fan_in + fan_out)) ** 0.5
    uniform = jax.random.uniform(jax.random.key(seed), shape)
    return limit * (2 * uniform - 1)


def initial_table(seed, shape):
    normal = jax.random.normal(jax.random.key(seed), shape)
    return normal * shape[-1] ** -0.5


def penalise(scores_bv, token_bn, repetition_penalty):
    held_bv = jnp.any(token_bn[:, :, None] == jnp.arange(scores_bv.shape[1]), axis=1)
    lower_bv = jnp.where(scores_bv > 0, scores_bv / repetition_penalty, scores_bv * repetition_penalty)
    return jnp.where(held_bv, lower_bv, scores_bv)


def truncate(logits_bv, temperature, top_k, top_p):
    order_bv = jnp.argsort(-logits_bv, axis=1, stable=True)
    ordered_bv = jnp.take_along_axis(logits_bv, order_bv, axis=1) / temperature
    if top_k:
        ordered_bv = jnp.where(jnp.arange(ordered_bv.shape[1]) < top_k, ordered_bv, -jnp.inf)
    if top_p < 1:
        p_bv = softmax(ordered_bv)
        ordered_bv = jnp.where(jnp.cumsum(p_bv, axis=1) - p_bv < top_p, ordered_bv, -jnp.inf)
    place_bv = jnp.argsort(order_bv, axis=1)
    return jnp.take_along_axis(ordered_bv, place_bv, axis=1)


def draw(logits_bv, uniform_b):
    cumulative_bv = jnp.cumsum(softmax(logits_bv), axis=1)
    return jnp.sum(cumulative_bv <= uniform_b[:, None], axis=1)


def greedy_search(parameters, source, target, allowed_v, padding_id, end_id, steps, epsilon):
    source_mask_bs = token_mask(source, padding_id)
    memory_bsd = encode(parameters, source, source_mask_bs, epsilon)
    ended_b1 = jnp.zeros((len(target), 1), bool)
    for _ in range(steps):
        target_mask_bt = token_mask(target, padding_id)
        logits_btv = decode(parameters, target, target_mask_bt, memory_bsd, source_mask_bs, epsilon)
        likeliest_b1 = jnp.argmax(jnp.where(allowed_v, logits_btv[:, -1:], -jnp.inf), axis=-1)
        token_b1 = jnp.where(ended_b1, padding_id, likeliest_b1)
        target = jnp.concatenate([target, token_b1], axis=1)
        ended_b1 = ended_b1 | (token_b1 == end_id)
        if jnp.all(ended_b1):
            break
    return target
