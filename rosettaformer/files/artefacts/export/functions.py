"""The functions that are exported for a config, with their inputs and outputs in order."""

from reference_numpy import TransformerConfig

from ..signature import Entry, Tensor

ROW, SOURCE, TARGET, READ = "b", "s", "t", "p"


def of_config(config: TransformerConfig, dtype: str, ids: str = "int64") -> dict[str, Entry]:
    """Returns every function by name.

    dtype: of vectors, keys and values. ids: of tokens and segments. Sizes that the model fixes are
    numbers. In a step, p tokens precede its t tokens, and masks have length `p+t`.
    """
    if not config.decoder_layers:
        return {"forward": _of_encoder(config, dtype, ids)}
    source = (Tensor("source", ids, (ROW, SOURCE)),) * config.cross_attention
    source_mask = (Tensor("source_mask_bs", "bool", (ROW, SOURCE)),) * config.cross_attention
    target = Tensor("target", ids, (ROW, TARGET))
    logits = Tensor("logits_btv", dtype, (ROW, TARGET, config.target_vocabulary))
    forward = Entry("forward", (*source, target, *source_mask, Tensor("target_mask_bt", "bool", (ROW, TARGET))), (logits,))
    cross = _cache(config, dtype, SOURCE, "cross_") if config.cross_attention else ()
    together = f"{READ}+{TARGET}"
    step = Entry(
        "step",
        (target, Tensor("target_mask_bs", "bool", (ROW, together)), *source_mask, *_cache(config, dtype, READ), *cross),
        (logits, *_cache(config, dtype, together)),
    )
    if not config.cross_attention:
        return {"forward": forward, "step": step}
    memory = Tensor("memory_bsd", dtype, (ROW, SOURCE, config.model_width))
    encode = Entry("encode", (*source, *source_mask), (memory, *cross))
    return {"forward": forward, "encode": encode, "step": step}


def ids_of(config: TransformerConfig) -> list[str]:
    """Returns the kinds of ids that the model looks up in tables."""
    return ["tokens", *["segments"] * bool(config.segments), *["positions"] * (config.positions == "learned")]


def _of_encoder(config: TransformerConfig, dtype: str, ids: str) -> Entry:
    segments = (Tensor("segment_bs", ids, (ROW, SOURCE)),) * bool(config.segments)
    outputs = {
        "hidden_bsd": (True, (ROW, SOURCE, config.model_width)),
        "pooled_bd": (config.pooler, (ROW, config.model_width)),
        "classes_bc": (config.classes, (ROW, config.classes)),
        "logits_bsv": (config.masked_language_head, (ROW, SOURCE, config.source_vocabulary)),
    }
    return Entry(
        "forward",
        (Tensor("source", ids, (ROW, SOURCE)), Tensor("source_mask_bs", "bool", (ROW, SOURCE)), *segments),
        tuple(Tensor(name, dtype, shape) for name, (present, shape) in outputs.items() if present),
    )


def _cache(config: TransformerConfig, dtype: str, length: str, kind: str = "") -> tuple[Tensor, Tensor]:
    layers, groups = config.decoder_layers, config.key_value_heads
    return (
        Tensor(f"{kind}keys_lbsgk", dtype, (layers, ROW, length, groups, config.key_size)),
        Tensor(f"{kind}values_lbsge", dtype, (layers, ROW, length, groups, config.value_size)),
    )
