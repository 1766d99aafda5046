"""Decoding in plain NumPy: a decoder with a key/value cache, greedy search, sampling and beam search."""
import numpy as np
from rosettaformer.ports import CLASSIC


def scope(params, name):
    return {key[len(name) + 1 :]: value for key, value in params.items() if key.startswith(name + ".")}


def normalise(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def norm(p, x, eps):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * p["scale"] + p["offset"]


def project(p, x, name):
    y = np.einsum("btd,dhk->bhtk", x, p[name + ".kernel"])
    return y + p[name + ".bias"][:, None, :] if name + ".bias" in p else y


def attend(p, q, k, v, mask):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
    weights = normalise(np.where(mask, scores, -1e9)) * mask
    y = np.einsum("bhte,hed->btd", weights @ v, p["output.kernel"])
    return y + p["output.bias"] if "output.bias" in p else y


def ffn(p, x):
    return np.maximum(x @ p["hidden.kernel"] + p["hidden.bias"], 0) @ p["output.kernel"] + p["output.bias"]


def position_table(position, width, dtype):
    i = np.arange(width)
    angle = position[..., None] / 10000.0 ** (2 * (i // 2) / width)
    return np.where(i % 2 == 0, np.sin(angle), np.cos(angle)).astype(dtype)


def embed(table, ids, position):
    width = table.shape[1]
    return table[ids] * np.sqrt(width).astype(table.dtype) + position_table(position, width, table.dtype)


def positions(real, start=0):
    """Left padding does not count: the first real token has position 0."""
    pad = np.where(real.any(-1), real.argmax(-1), real.shape[1])
    return np.maximum(np.arange(start, real.shape[1]) - pad[:, None], 0)


def encode(params, cfg, ids, real):
    x = embed(params["source_embedding.table"], ids, positions(real))
    mask = real[:, None, None, :]
    for n in range(cfg.encoder_layers):
        layer = scope(params, f"encoder.layers.{n}")
        attn = scope(layer, "self_attention")
        q, k, v = (project(attn, x, name) for name in ("query", "key", "value"))
        x = norm(scope(layer, "self_attention_norm"), x + attend(attn, q, k, v, mask), cfg.epsilon)
        x = norm(scope(layer, "feed_forward_norm"), x + ffn(scope(layer, "feed_forward"), x), cfg.epsilon)
    return x


class Decoder:
    """Holds the keys and values of what has been decoded so far."""

    def __init__(self, params, cfg, memory, memory_real):
        self.params, self.cfg = params, cfg
        self.layers = [scope(params, f"decoder.layers.{n}") for n in range(cfg.decoder_layers)]
        self.memory_mask = memory_real[:, None, None, :]
        self.real = np.zeros((len(memory), 0), bool)
        self.self_kv = [None] * cfg.decoder_layers
        self.cross_kv = []
        for layer in self.layers:
            cross = scope(layer, "cross_attention")
            self.cross_kv.append((project(cross, memory, "key"), project(cross, memory, "value")))

    def step(self, ids, real):
        """Logits of these tokens, which follow those of the earlier steps."""
        cfg, past = self.cfg, self.real.shape[1]
        self.real = np.concatenate([self.real, real], axis=1)
        x = embed(self.params["target_embedding.table"], ids, positions(self.real, past))
        total = past + ids.shape[1]
        causal = np.arange(total)[None, :] <= np.arange(past, total)[:, None]
        mask = causal & self.real[:, None, None, :]
        for n, layer in enumerate(self.layers):
            attn, cross = scope(layer, "self_attention"), scope(layer, "cross_attention")
            q, k, v = (project(attn, x, name) for name in ("query", "key", "value"))
            if self.self_kv[n] is not None:
                k = np.concatenate([self.self_kv[n][0], k], axis=2)
                v = np.concatenate([self.self_kv[n][1], v], axis=2)
            self.self_kv[n] = (k, v)
            x = norm(scope(layer, "self_attention_norm"), x + attend(attn, q, k, v, mask), cfg.epsilon)
            q = project(cross, x, "query")
            x = norm(scope(layer, "cross_attention_norm"), x + attend(cross, q, *self.cross_kv[n], self.memory_mask), cfg.epsilon)
            x = norm(scope(layer, "feed_forward_norm"), x + ffn(scope(layer, "feed_forward"), x), cfg.epsilon)
        return x @ self.params["logits.kernel"] + self.params["logits.bias"]

    def reorder(self, rows):
        self.real, self.memory_mask = self.real[rows], self.memory_mask[rows]
        self.self_kv = [(k[rows], v[rows]) for k, v in self.self_kv]
        self.cross_kv = [(k[rows], v[rows]) for k, v in self.cross_kv]


def apply_penalties(scores, tokens, real, penalty=1.0, ngram=0):
    scores = scores.copy()
    for row in range(len(scores)):
        seen = np.unique(tokens[row][real[row]])
        s = scores[row, seen]
        scores[row, seen] = np.where(s > 0, s / penalty, s * penalty)
        if ngram:
            length = tokens.shape[1]
            tail, tail_real = tokens[row, length - ngram + 1 :], real[row, length - ngram + 1 :]
            if length < ngram or not tail_real.all():
                continue
            for start in range(length - ngram + 1):
                window = slice(start, start + ngram)
                if real[row, window].all() and (tokens[row, start : start + ngram - 1] == tail).all():
                    scores[row, tokens[row, start + ngram - 1]] = -np.inf
    return scores


def filter_logits(logits, temperature=1.0, top_k=0, top_p=1.0):
    logits = logits / logits.dtype.type(temperature)
    order = np.argsort(-logits, axis=-1, kind="stable")
    ranked = np.take_along_axis(logits, order, -1)
    keep = np.ones_like(ranked, dtype=bool)
    if top_k > 0:
        keep[:, top_k:] = False
    if top_p < 1:
        probs = normalise(np.where(keep, ranked, -np.inf))
        before = np.cumsum(probs, axis=-1) - probs
        keep &= before < top_p
    result = np.full_like(logits, -np.inf)
    np.put_along_axis(result, order, np.where(keep, ranked, -np.inf), -1)
    return result


def draw_token(logits, uniform):
    probs = normalise(logits)
    cdf = np.cumsum(probs, axis=-1)
    token = (cdf <= uniform[:, None]).sum(-1)
    last = probs.shape[-1] - 1 - (probs[:, ::-1] > 0).argmax(-1)  # rounding may leave the sum below 1
    return np.minimum(token, last)


class Options:
    def __init__(self, strategy):
        defaults = dict(min_new_tokens=0, repetition_penalty=1.0, no_repeat_ngram=0, temperature=1.0, top_k=0, top_p=1.0,
                        beam_size=1, n_best=1, alpha=0.6, early_stop=False)
        vars(self).update(defaults, **strategy)


def start(case):
    cfg, opt = case.config, Options(case.inputs["strategy"])
    source, real, prefix = (case.inputs.get(name) for name in ("source", "source_mask_bs", "prefix"))
    real = is_real(source, cfg.padding_id) if real is None else real
    decoder = Decoder(case.parameters, cfg, encode(case.parameters, cfg, source, real), real)
    if prefix is None:
        prefix = np.full((len(source), 1), opt.start_id)
        prefix_real = np.ones(prefix.shape, bool)
    else:
        prefix_real = case.inputs.get("prefix_mask_bp")
        prefix_real = is_real(prefix, cfg.padding_id) if prefix_real is None else prefix_real
    return cfg, opt, decoder, prefix, prefix_real


def is_real(ids, pad):
    return np.ones(ids.shape, bool) if pad is None else ids != pad


def allowed(logits, cfg, opt):
    """Padding and the start token are never an answer."""
    logits = logits.copy()
    for banned in (cfg.padding_id, opt.start_id):
        if banned is not None and banned != opt.end_id:
            logits[:, banned] = -np.inf
    return logits


def generate(case, choose):
    cfg, opt, decoder, tokens, real = start(case)
    batch, done = len(tokens), np.zeros(len(tokens), bool)
    pad = 0 if cfg.padding_id is None else cfg.padding_id
    out = np.full((batch, opt.max_new_tokens), pad, np.int64)
    out_log_p = np.zeros((batch, opt.max_new_tokens), case.parameters["logits.kernel"].dtype)
    logits = decoder.step(tokens, real)[:, -1]
    for n in range(opt.max_new_tokens):
        logits = allowed(logits, cfg, opt)
        log_p = log_softmax(logits)
        scores = apply_penalties(logits, tokens, real, opt.repetition_penalty, opt.no_repeat_ngram)
        if n < opt.min_new_tokens:
            scores[:, opt.end_id] = -np.inf
        scores[np.isneginf(scores).all(-1), opt.end_id] = 0.0  # nothing may follow
        token = choose(scores, n, opt)
        out[:, n] = np.where(done, pad, token)
        out_log_p[:, n] = np.where(done, 0, log_p[np.arange(batch), token])
        done |= token == opt.end_id
        if done.all() or n == opt.max_new_tokens - 1:
            break
        tokens = np.concatenate([tokens, token[:, None]], axis=1)
        real = np.concatenate([real, np.ones((batch, 1), bool)], axis=1)
        logits = decoder.step(tokens[:, -1:], real[:, -1:])[:, -1]
    return {"token_bn": out, "log_p_bn": out_log_p}


def length_penalty(length, alpha):
    return ((5.0 + length) / 6.0) ** alpha


dtypes = ("float64", "float32")
config = CLASSIC | {"encoder_layers": 2, "activation": "relu", "norm_placement": "post", "final_norm": False, "positions": "sinusoidal", "max_positions": 0,
          "position_start": "first_token", "segments": 0, "embedding_norm": False, "scale_embedding": True,
          "share_embeddings": False, "tie_logits": False, "output_bias": True, "heads": 3, "key_value_heads": 3}


def penalise(case):
    i = case.inputs
    tokens, real = i["token_bn"], i.get("mask_bn")
    real = np.ones(tokens.shape, bool) if real is None else real
    return apply_penalties(i["scores_bv"], tokens, real, i.get("repetition_penalty", 1.0), i.get("no_repeat_ngram", 0))


def truncate(case):
    i = case.inputs
    return filter_logits(i["logits_bv"], i.get("temperature", 1.0), i.get("top_k", 0), i.get("top_p", 1.0))


def draw(case):
    return draw_token(case.inputs["logits_bv"], case.inputs["uniform_b"])


def decode_in_steps(case):
    i, cfg = case.inputs, case.config
    target, memory, memory_real, real = i["target"], i["memory_bsd"], i.get("source_mask_bs"), i.get("target_mask_bt")
    memory_real = np.ones(memory.shape[:2], bool) if memory_real is None else memory_real
    real = is_real(target, cfg.padding_id) if real is None else real
    decoder, done, pieces = Decoder(case.parameters, cfg, memory, memory_real), 0, []
    for size in i["splits"]:
        piece = slice(done, done + size)
        pieces.append(decoder.step(target[:, piece], real[:, piece]))
        done += size
    return np.concatenate(pieces, axis=1)


def greedy_search(case):
    return generate(case, lambda scores, n, opt: scores.argmax(-1))


def sample(case):
    uniform = case.inputs["uniform_bn"]

    def choose(scores, n, opt):
        if opt.temperature == 0:
            return scores.argmax(-1)
        return draw_token(filter_logits(scores, opt.temperature, opt.top_k, opt.top_p), uniform[:, n])

    return generate(case, choose)


def beam_search(case):
    cfg, opt, decoder, prefix, prefix_real = start(case)
    batch, w, dtype = len(prefix), opt.beam_size, case.parameters["logits.kernel"].dtype
    pad = opt.end_id if cfg.padding_id is None else cfg.padding_id
    logits = decoder.step(prefix, prefix_real)[:, -1]
    decoder.reorder(np.repeat(np.arange(batch), w))
    logits = np.repeat(logits, w, 0)
    tokens, real = np.repeat(prefix, w, 0), np.repeat(prefix_real, w, 0)
    live = np.full((batch, w), -np.inf, dtype)
    live[:, 0] = 0.0  # all beams are the same at first
    finished, stopped = [[] for _ in range(batch)], np.zeros(batch, bool)
    for n in range(1, opt.max_new_tokens + 1):
        log_p = log_softmax(allowed(logits, cfg, opt))
        log_p = apply_penalties(log_p, tokens, real, opt.repetition_penalty, opt.no_repeat_ngram)
        if n <= opt.min_new_tokens:
            log_p[:, opt.end_id] = -np.inf
        total = live[:, :, None] + log_p.reshape(batch, w, -1)
        rows, new = np.zeros((batch, w), int), np.zeros((batch, w), int)
        for b in range(batch):
            if stopped[b]:
                continue
            for beam in range(w):
                if np.isfinite(total[b, beam, opt.end_id]):
                    answer = list(tokens[b * w + beam, prefix.shape[1] :]) + [opt.end_id]
                    finished[b].append((total[b, beam, opt.end_id] / length_penalty(n, opt.alpha), answer))
            finished[b] = sorted(finished[b], key=lambda pair: -pair[0])[:w]
            total[b, :, opt.end_id] = -np.inf
            flat = total[b].ravel()
            best = np.argsort(-flat, kind="stable")[:w]
            rows[b], new[b] = best // total.shape[-1], best % total.shape[-1]
            live[b] = flat[best]
            if len(finished[b]) == w:
                longest = length_penalty(opt.max_new_tokens, opt.alpha)
                stopped[b] = opt.early_stop or live[b].max() / longest <= finished[b][-1][0]
        if stopped.all() or n == opt.max_new_tokens:
            break
        index = (np.arange(batch)[:, None] * w + rows).ravel()
        decoder.reorder(index)
        tokens = np.concatenate([tokens[index], new.reshape(-1, 1)], axis=1)
        real = np.concatenate([real[index], np.ones((batch * w, 1), bool)], axis=1)
        logits = decoder.step(tokens[:, -1:], real[:, -1:])[:, -1]
    out = np.full((batch, opt.n_best, opt.max_new_tokens), pad, np.int64)
    score = np.full((batch, opt.n_best), -np.inf, dtype)
    for b in range(batch):
        for place, (value, answer) in enumerate(finished[b][: opt.n_best]):
            out[b, place, : len(answer)] = answer
            score[b, place] = value
    return {"token_bwn": out, "score_bw": score}
