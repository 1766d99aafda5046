"""Cases on a mesh of the components with parameters, of attention and of the loss: at the sizes of `mesh_models`."""

from collections.abc import Iterator
from typing import Any

from ..case import Case
from .build import Builder, left_padding, rng
from .mesh_models import RATES, ROWS, S, T, drawn, models, uneven


def part_cases(build: Builder) -> Iterator[Case]:
    """Yields tables, attention, feed-forward networks, norms, layers, stacks, heads and the loss."""
    yield from _table_cases(build)
    yield from _attention_cases(build)
    yield from _part_cases(build)
    yield from _layer_cases(build)
    yield from _head_cases(build)


def _table_cases(build: Builder) -> Iterator[Case]:
    whole = models(build)
    token = rng("mesh tokens").integers(0, whole["paper"].source_vocabulary, (ROWS, T))
    position = rng("mesh positions").integers(0, 11, (ROWS, T))
    yield build.make("embedding", "table", whole["paper"], token=token)
    yield build.make("position_embedding", "table", whole["gpt2"], position_bt=position)
    yield build.make("segment_embedding", "table", whole["bert"], segment_bs=position % 3)


def _attention_cases(build: Builder) -> Iterator[Case]:
    """Yields attention alone; projections with biases; fewer groups than parts; norms of a head and of the width; keep masks."""
    whole, mask = models(build), uneven(ROWS, S)[:, None, None]
    heads: dict[str, Any] = {"query_bthk": f"{ROWS} {T} h k", "key_bsgk": f"{ROWS} {S} g k", "value_bsge": f"{ROWS} {S} g e"}
    yield build.make("scaled_dot_product_attention", "grouped", whole["llama"], mask_bhts=mask, **heads)
    x: dict[str, Any] = {"query_btd": f"{ROWS} {T} d", "memory_bsd": f"{ROWS} {S} d"}
    own: dict[str, Any] = {"query_btd": f"{ROWS} {T} d", "memory_bsd": f"{ROWS} {T} d", "causal": True}
    dropped = whole["untied"].replace(key_value_heads=whole["untied"].heads, attention_dropout_rate=0.3)
    keep = rng("mesh keep weights").random((ROWS, dropped.heads, T, S)) >= 0.3
    yield build.make("multi_head_attention", "keep", dropped, mask_bhts=mask, keep_bhts=keep, **x)
    yield build.make("multi_head_attention", "grouped", whole["untied"], mask_bhts=mask, **x)
    yield build.make("multi_head_attention", "norm_head", whole["qwen3"], **own)
    yield build.make("multi_head_attention", "norm_width", whole["olmo2"], **own)
    yield build.make("multi_head_attention", "window_cap", whole["gemma"], **own)


def _part_cases(build: Builder) -> Iterator[Case]:
    whole = models(build)
    x: dict[str, Any] = {"x_btd": f"{ROWS} {T} d"}
    keep = rng("mesh keep hidden").random((ROWS, T, whole["untied"].feed_forward_width)) >= 0.4
    yield build.make("feed_forward", "keep", whole["untied"].replace(hidden_dropout_rate=0.4), keep_btf=keep, **x)
    yield build.make("feed_forward", "gated", whole["llama"], **x)
    yield build.make("layer_norm", "plain", whole["untied"], **x)
    yield build.make("rms_norm", "plain", whole["llama"], **x)


def _layer_cases(build: Builder) -> Iterator[Case]:
    """Yields layers and stacks with ragged rows, among them keep masks of every site."""
    whole = models(build)
    crossed, dropped = whole["untied"], whole["untied"].replace(**RATES)
    masks = drawn(dropped, "layer", S, S)
    keep: dict[str, Any] = {
        name.replace("encoder.layers.0.", "keep."): mask for name, mask in masks.items() if name.startswith("encoder.layers.0.")
    }
    source, target = uneven(ROWS, S)[:, None, None], left_padding(ROWS, T)[:, None, None]
    x: dict[str, Any] = {"x_btd": f"{ROWS} {T} d"}
    memory = {"memory_bsd": f"{ROWS} {S} d"}
    both: dict[str, Any] = {**x, **memory, "self_mask_bhts": target, "cross_mask_bhts": source}
    yield build.make("encoder_layer", "keep", dropped, x_btd=f"{ROWS} {S} d", mask_bhts=source, **keep)
    yield build.make("decoder_layer", "crossed", crossed, **both)
    for name in ("llama", "olmo2", "gemma"):
        yield build.make("decoder_layer", name, whole[name], self_mask_bhts=target, **x)
    two = crossed.replace(encoder_layers=2, decoder_layers=2)
    yield build.make("encoder", "layers", two, x_bsd=f"{ROWS} {S} d", mask_bhts=source)
    yield build.make("decoder", "layers", two, **both)


def _head_cases(build: Builder) -> Iterator[Case]:
    """Yields logits whose vocabulary does not divide, heads of an encoder, and the loss on logits."""
    whole = models(build)
    x: dict[str, Any] = {"x_btd": f"{ROWS} {T} d"}
    label = rng("mesh labels").integers(0, whole["paper"].source_vocabulary, (ROWS, T))
    yield build.make("logits", "bias", whole["untied"], **x)
    yield build.make("logits", "cap", whole["gemma"], **x)
    yield build.make("pooler", "plain", whole["bert"], x_bsd=f"{ROWS} {S} d")
    keep = rng("mesh keep classifier").random((ROWS, whole["bert"].model_width)) >= 0.3
    yield build.make("classifier", "keep", whole["bert"].replace(classifier_dropout_rate=0.3), pooled_br=f"{ROWS} d", keep_br=keep)
    yield build.make("masked_language_head", "tied", whole["bert_words"], x_bsd=f"{ROWS} {S} d")
    yield build.make(
        "cross_entropy", "smoothed", whole["paper"], logits_btv=f"{ROWS} {T} v", label_bt=label, mask_bt=uneven(ROWS, T), smoothing=0.1
    )
