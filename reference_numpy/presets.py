"""Named configurations of published models and tutorials."""

import math
from typing import Any

from .config import TransformerConfig
from .rotary_scaling import RotaryScaling
from .suggestions import known

__all__ = ["PRESETS", "preset"]


def preset(name: str, **changes: Any) -> TransformerConfig:
    """Returns the configuration with this name in `PRESETS`, with some fields changed.

    Raises ValueError on an unknown name or field, and on values out of range.
    """
    known("preset", [name], PRESETS)
    return PRESETS[name].replace(**changes)


_PAPER_BASE = TransformerConfig(
    source_vocabulary=37000,
    target_vocabulary=37000,
    model_width=512,
    heads=8,
    key_value_heads=8,
    key_size=64,
    value_size=64,
    feed_forward_width=2048,
    encoder_layers=6,
    decoder_layers=6,
    scale_embedding=True,
    round_embedding_scale=False,
    embedding_multiplier=1.0,
    share_embeddings=True,
    segments=0,
    embedding_norm=False,
    padding_id=0,
    positions="sinusoidal",
    sinusoid_layout="interleaved",
    max_positions=0,
    position_offset=0,
    position_start="first_token",
    rotary_layout="halves",
    rotary_fraction=1.0,
    rotary_base=10000.0,
    rotary_scaling=RotaryScaling(),
    local_rotary_base=10000.0,
    local_rotary_scaling=RotaryScaling(),
    rotary_pattern=(True,),
    layer_pattern=("global",),
    window=0,
    query_key_norm="none",
    query_key_norm_offset=True,
    query_key_norm_after_rotation=False,
    query_key_value_clip=None,
    score_scale=None,
    score_cap=None,
    attention_sinks="none",
    query_key_value_bias=False,
    attention_output_bias=False,
    activation="relu",
    gated_feed_forward=False,
    feed_forward_bias=True,
    gate_limit=None,
    hidden_offset=0.0,
    experts=0,
    experts_per_token=0,
    expert_width=0,
    expert_pattern=(True,),
    expert_weighted="output",
    shared_width=0,
    shared_gate=False,
    router_scores="softmax",
    router_bias=False,
    selection_bias=False,
    router_normalize=True,
    router_epsilon=0.0,
    router_scale=1.0,
    router_product_dtype="model",
    router_score_dtype="float32",
    router_weight_dtype="model",
    router_groups=1,
    router_groups_kept=1,
    router_group_score="best",
    router_group_mask="zero",
    norm="layer",
    norm_scale=True,
    norm_offset=True,
    norm_one_plus_scale=False,
    norm_cast_before_scale=False,
    norm_placement="post",
    first_norm=True,
    residual_multiplier=1.0,
    final_norm=False,
    epsilon=1e-6,
    tie_logits=True,
    output_bias=False,
    logit_scale=1.0,
    logit_cap=None,
    pooler=False,
    pooler_activation="tanh",
    classes=0,
    masked_language_head=False,
    head_bias=True,
    dropout_rate=0.1,
    attention_dropout_rate=0.0,
    hidden_dropout_rate=0.0,
    classifier_dropout_rate=0.0,
)

PRESETS: dict[str, TransformerConfig] = {
    # Vaswani et al. 2017, Table 3, rows "base" and "big"; epsilon as in tensor2tensor.
    "paper_base": _PAPER_BASE,
    "paper_big": _PAPER_BASE.replace(
        model_width=1024, heads=16, key_value_heads=16, feed_forward_width=4096, dropout_rate=0.3
    ),
    # Small enough to read, to train on a laptop and to compile in seconds.
    "tiny": _PAPER_BASE.replace(
        source_vocabulary=101,
        target_vocabulary=101,
        model_width=32,
        heads=4,
        key_value_heads=4,
        key_size=8,
        value_size=8,
        feed_forward_width=64,
        encoder_layers=2,
        decoder_layers=2,
    ),
    # Tutorials, at the paper's sizes. As torch.nn.Transformer: biases, a norm after the last layer,
    # its epsilon, and separate tables for source, target and logits.
    "nn_transformer": _PAPER_BASE.replace(
        share_embeddings=False,
        tie_logits=False,
        attention_bias=True,
        output_bias=True,
        final_norm=True,
        epsilon=1e-5,
    ),
    "separate_tables": _PAPER_BASE.replace(
        share_embeddings=False, tie_logits=False, attention_bias=True, output_bias=True
    ),
    # Does not multiply embeddings by sqrt(d).
    "unscaled_embedding": _PAPER_BASE.replace(scale_embedding=False),
    # Dropout between the feed-forward projections; biases in attention.
    "feed_forward_dropout": _PAPER_BASE.replace(
        attention_bias=True, epsilon=1e-5, hidden_dropout_rate=0.1
    ),
    "one_encoder_layer": _PAPER_BASE.replace(
        encoder_layers=1,
        decoder_layers=0,
        attention_bias=True,
        epsilon=1e-5,
        padding_id=None,
        dropout_rate=0.0,
    ),
    # Devlin et al. 2019, BERT base uncased, without the next-sentence head.
    "bert_base": _PAPER_BASE.replace(
        source_vocabulary=30522,
        target_vocabulary=30522,
        model_width=768,
        heads=12,
        key_value_heads=12,
        feed_forward_width=3072,
        encoder_layers=12,
        decoder_layers=0,
        positions="learned",
        max_positions=512,
        position_start="row",
        segments=2,
        embedding_norm=True,
        activation="gelu_erf",
        epsilon=1e-12,
        scale_embedding=False,
        attention_bias=True,
        output_bias=True,
        pooler=True,
        masked_language_head=True,
        attention_dropout_rate=0.1,
        classifier_dropout_rate=0.1,
    ),
    # Radford et al. 2019, the smallest GPT-2.
    "gpt2_small": _PAPER_BASE.replace(
        source_vocabulary=50257,
        target_vocabulary=50257,
        model_width=768,
        heads=12,
        key_value_heads=12,
        feed_forward_width=3072,
        encoder_layers=0,
        decoder_layers=12,
        positions="learned",
        max_positions=1024,
        activation="gelu_tanh",
        norm_placement="pre",
        final_norm=True,
        epsilon=1e-5,
        scale_embedding=False,
        share_embeddings=False,
        attention_bias=True,
        padding_id=None,
        attention_dropout_rate=0.1,
    ),
}

# Touvron et al. 2023, Llama 2 7B, the architecture of most later decoders.
_LLAMA_2 = PRESETS["gpt2_small"].replace(
    source_vocabulary=32000,
    target_vocabulary=32000,
    model_width=4096,
    heads=32,
    key_value_heads=32,
    key_size=128,
    value_size=128,
    feed_forward_width=11008,
    decoder_layers=32,
    positions="rotary",
    max_positions=0,
    activation="silu",
    gated_feed_forward=True,
    norm="rms",
    norm_offset=False,
    norm_cast_before_scale=True,
    tie_logits=False,
    attention_bias=False,
    feed_forward_bias=False,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
)
_GEMMA = _LLAMA_2.replace(
    source_vocabulary=256000,
    target_vocabulary=256000,
    epsilon=1e-6,
    activation="gelu_tanh",
    norm_one_plus_scale=True,
    norm_cast_before_scale=False,
    scale_embedding=True,
    round_embedding_scale=True,
    tie_logits=True,
    key_size=256,
    value_size=256,
)

_MIXTRAL = _LLAMA_2.replace(
    key_value_heads=8,
    rotary_base=1000000.0,
    experts=8,
    experts_per_token=2,
    expert_width=14336,
    router_weight_dtype="float32",
)
_GPT_OSS_SCALING = RotaryScaling(
    kind="yarn",
    factor=32.0,
    original_length=4096,
    beta_fast=32.0,
    beta_slow=1.0,
    truncate=False,
    attention_factor=0.1 * math.log(32) + 1,
)

PRESETS |= {
    "llama2_7b": _LLAMA_2,
    # Grattafiori et al. 2024, Llama 3.1 8B.
    "llama31_8b": _LLAMA_2.replace(
        source_vocabulary=128256,
        target_vocabulary=128256,
        key_value_heads=8,
        feed_forward_width=14336,
        rotary_base=500000.0,
        rotary_scaling=RotaryScaling(
            kind="llama3",
            factor=8.0,
            original_length=8192,
            low_frequency_factor=1.0,
            high_frequency_factor=4.0,
        ),
    ),
    # Jiang et al. 2023, Mistral 7B v0.1.
    "mistral_7b": _LLAMA_2.replace(
        key_value_heads=8, feed_forward_width=14336, layer_pattern=("local",), window=4096
    ),
    # Yang et al. 2025, Qwen 3 0.6B.
    "qwen3_600m": _LLAMA_2.replace(
        source_vocabulary=151936,
        target_vocabulary=151936,
        model_width=1024,
        heads=16,
        key_value_heads=8,
        feed_forward_width=3072,
        decoder_layers=28,
        rotary_base=1000000.0,
        epsilon=1e-6,
        query_key_norm="head",
        tie_logits=True,
    ),
    # Gemma Team 2024, Gemma 2 2B.
    "gemma2_2b": _GEMMA.replace(
        model_width=2304,
        heads=8,
        key_value_heads=4,
        feed_forward_width=9216,
        decoder_layers=26,
        norm_placement="sandwich",
        score_scale=256**-0.5,
        score_cap=50.0,
        logit_cap=30.0,
        layer_pattern=("local", "global"),
        window=4096,
    ),
    # Gemma Team 2025, Gemma 3 1B.
    "gemma3_1b": _GEMMA.replace(
        source_vocabulary=262144,
        target_vocabulary=262144,
        model_width=1152,
        heads=4,
        key_value_heads=1,
        feed_forward_width=6912,
        decoder_layers=26,
        norm_placement="sandwich",
        query_key_norm="head",
        score_scale=256**-0.5,
        rotary_base=1000000.0,
        layer_pattern=("local", "local", "local", "local", "local", "global"),
        window=512,
    ),
    # Jiang et al. 2024, Mixtral 8x7B.
    "mixtral_8x7b": _MIXTRAL,
    # OpenAI 2025, gpt-oss 20B.
    "gpt_oss_20b": _MIXTRAL.replace(
        source_vocabulary=201088,
        target_vocabulary=201088,
        model_width=2880,
        heads=64,
        key_size=64,
        value_size=64,
        decoder_layers=24,
        rotary_base=150000.0,
        rotary_scaling=_GPT_OSS_SCALING,
        local_rotary_base=150000.0,
        local_rotary_scaling=_GPT_OSS_SCALING,
        layer_pattern=("local", "global"),
        window=128,
        attention_sinks="all",
        attention_bias=True,
        activation="gelu_sigmoid",
        feed_forward_bias=True,
        gate_limit=7.0,
        hidden_offset=1.0,
        experts=32,
        experts_per_token=4,
        expert_width=2880,
        router_scores="chosen_softmax",
        router_bias=True,
        router_normalize=False,
        router_score_dtype="model",
        router_weight_dtype="model",
        norm_cast_before_scale=False,
        epsilon=1e-5,
    ),
}
