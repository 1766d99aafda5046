"""KerasHub's BART, BERT, GPT-2, Llama and Mixtral: searches, hidden states, and logits as graphs."""

import functools
from typing import Any

import numpy as np

from reference_numpy import layout
from rosettaformer.common.modules import attributes
from rosettaformer.comparison.timing.rows import Call, Row

from ..problem import Problem, renamed
from ..workloads import PADDING, START

HEADS = {"query": "h k", "key": "g k", "value": "g e"}
# suffixes of our names -> variables of its layers
TABLE: layout.Table = (
    *(("table", "embeddings", f"{rows} d") for rows in "vpa"),
    *((f"{name}.kernel", f"{name}_dense.kernel", f"d {heads}") for name, heads in HEADS.items()),
    *((f"{name}.bias", f"{name}_dense.bias", heads) for name, heads in HEADS.items()),
    *((f"output.{kind}", f"output_dense.{kind}", axes) for kind, axes in (("kernel", "h e d"), ("kernel", "f d"), ("bias", "d"))),
    *((f"hidden.{kind}", f"intermediate_dense.{kind}", axes) for kind, axes in (("kernel", "d f"), ("bias", "f"))),
    ("gate.kernel", "gate_dense.kernel", "d f"),
    ("scale", "gamma", "d"),
    ("offset", "beta", "d"),
)
# parts of our names -> its attributes
NAMES = {
    "source_embedding_norm": "embeddings_layer_norm",
    "source_embedding": "token_embedding",
    "target_embedding": "token_embedding",
    "source_segment_embedding": "segment_embedding",
    "source_position_embedding.": "position_embedding.position_",
    "target_position_embedding.": "position_embedding.position_",
    "decoder.final_norm": "layer_norm",
    "encoder.layers": "transformer_layers",
    "decoder.layers": "transformer_layers",
    "self_attention_norm": "_self_attention_layer_norm",
    "self_attention.": "_self_attention_layer._",
    "feed_forward_norm": "_feedforward_layer_norm",
    "feed_forward.": "_feedforward_",
}


# the same for Llama, where they differ
LLAMA_TABLE: layout.Table = (("scale", "scale", "d"), *TABLE)
LLAMA_NAMES = NAMES | {"self_attention_norm": "_self_attention_layernorm", "feed_forward_norm": "_feedforward_layernorm"}
# and for Mixtral
MIXTRAL_TABLE: layout.Table = (
    *(
        (f"experts.{name}.kernel", f"experts.{name}_dense", "x m d" if name == "output" else "x d m")
        for name in ("gate", "hidden", "output")
    ),
    ("router.kernel", "_sparse_feedforward_gate_dense.kernel", "d x"),
    ("logits.kernel", "target_embedding.reverse_embeddings", "d v"),
    *LLAMA_TABLE,
)
MIXTRAL_NAMES = {
    "feed_forward.experts.hidden": "_sparse_moe_block.expert_bank._expert_feedforward_intermediate",
    "feed_forward.experts.": "_sparse_moe_block.expert_bank._expert_feedforward_",
    "feed_forward._sparse": "_sparse_moe_block._sparse",
} | {**LLAMA_NAMES, "self_attention.": "_self_attention_layer."}
FAMILIES = {"Llama": (LLAMA_TABLE, LLAMA_NAMES), "Mixtral": (MIXTRAL_TABLE, MIXTRAL_NAMES)}


def rows(problem: Problem) -> list[Row]:
    """Returns rows. BART's architecture differs from the paper's: timed, not compared."""
    name = problem.task.published or "BART"
    start = {"encoder": _encode, "greedy": _generate}.get(problem.task.kind) if problem.task.published else _search
    if start is None:
        return []
    about: dict[str, Any] = {"peer": True, "compiles": True, "comparable": name != "BART"}
    return [
        Row("tf", f"keras_hub {name} {how}", start=functools.partial(start, problem, jit), **about)
        for how, jit in (("compiled", True), ("compiled, no XLA", False))
    ]


def _encode(problem: Problem, jit_compile: bool) -> Call:
    """Encodes without the pooler, and with BERT's exact GELU instead of the approximation."""
    import keras
    import keras_hub
    import tensorflow as tf

    backbone = keras_hub.models.BertBackbone(**_sizes(problem), num_segments=problem.config.segments)
    for layer in backbone.transformer_layers:
        layer._feedforward_intermediate_dense.activation = functools.partial(keras.activations.gelu, approximate=False)
    model = keras.Model(backbone.input, backbone.output["sequence_output"])
    _fill(backbone, problem)
    source = problem.source.astype("int32")
    inputs = {"token_ids": source, "segment_ids": np.zeros_like(source), "padding_mask": (source != PADDING).astype("int32")}
    given = {name: tf.constant(array) for name, array in inputs.items()}
    run = tf.function(lambda inputs: model(inputs, training=False), jit_compile=jit_compile, autograph=False)
    return lambda: run(given)


def _generate(problem: Problem, jit_compile: bool) -> Call:
    import keras_hub

    model = _causal(problem)
    model.compile(sampler=keras_hub.samplers.GreedySampler(), jit_compile=jit_compile)
    prompt, count = problem.source.shape[1], problem.task.new_tokens
    target = np.pad(problem.source.astype("int32"), [(0, 0), (0, count)])
    given = {"token_ids": target, "padding_mask": np.arange(prompt + count) < np.full((len(target), 1), prompt)}
    return lambda: {"token_bn": model.generate(given, stop_token_ids=None)["token_ids"][:, prompt:]}


class Decoder:
    """A causal language model with our models' call signature."""

    def __init__(self, problem: Problem) -> None:
        self.model = _causal(problem)
        self.trainable_variables = self.model.trainable_variables

    def __call__(self, source: None, target: Any, training: bool = False) -> Any:
        return self.model({"token_ids": target, "padding_mask": target * 0 + 1}, training=training)


def _causal(problem: Problem) -> Any:
    """Returns the causal language model of the task's family with our weights."""
    import keras_hub

    config, sizes = problem.config, _sizes(problem)
    if problem.task.published in FAMILIES:
        heads = {"num_query_heads": sizes.pop("num_heads"), "num_key_value_heads": config.key_value_heads}
        del sizes["max_sequence_length"]
        more = {"layer_norm_epsilon": config.epsilon, "rope_max_wavelength": config.rotary_base}
        if config.experts:
            own: Any = {"num_experts": config.experts, "top_k": config.experts_per_token, "sliding_window": None}
            model = keras_hub.models.MixtralCausalLM(keras_hub.models.MixtralBackbone(**sizes, **heads, **more, **own), preprocessor=None)
        else:
            backbone = keras_hub.models.LlamaBackbone(**sizes, **heads, **more, tie_word_embeddings=config.tie_logits)
            model = keras_hub.models.LlamaCausalLM(backbone, preprocessor=None)
    else:
        model = keras_hub.models.GPT2CausalLM(keras_hub.models.GPT2Backbone(**sizes), preprocessor=None)
    _fill(model.backbone, problem)
    return model


def _search(problem: Problem, jit_compile: bool) -> Call:
    import keras_hub

    task, sizes = problem.task, _sizes(problem) | {"max_sequence_length": max(problem.task.length, problem.task.new_tokens + 1)}
    model = keras_hub.models.BartSeq2SeqLM(keras_hub.models.BartBackbone(**sizes), preprocessor=None)
    greedy = keras_hub.samplers.GreedySampler()
    sampler = greedy if task.kind == "greedy" else keras_hub.samplers.BeamSampler(num_beams=task.beams)
    model.compile(sampler=sampler, jit_compile=jit_compile)
    inputs = _inputs(problem)
    return lambda: {"token_bn": model.generate(inputs, stop_token_ids=None)["decoder_token_ids"][:, 1:]}


def _inputs(problem: Problem) -> dict[str, Any]:
    """Returns a preprocessor's output: one token and room for new ones. No stop token."""
    batch, length = len(problem.source), problem.task.new_tokens + 1
    target = np.full((batch, length), PADDING, "int32")
    target[:, 0] = START
    return {
        "encoder_token_ids": problem.source.astype("int32"),
        "encoder_padding_mask": problem.source != PADDING,
        "decoder_token_ids": target,
        "decoder_padding_mask": np.arange(length) < np.ones((batch, 1)),
    }


def _sizes(problem: Problem) -> dict[str, Any]:
    config = problem.config
    return {
        "vocabulary_size": config.source_vocabulary, "num_layers": max(config.encoder_layers, config.decoder_layers),
        "num_heads": config.heads, "hidden_dim": config.model_width, "intermediate_dim": config.feed_forward_width,
        "max_sequence_length": config.max_positions,
    }  # fmt: skip


def _fill(backbone: Any, problem: Problem) -> None:
    """Sets its variables, except a pooler's, to our weights."""
    table, names = FAMILIES.get(problem.task.published, (TABLE, NAMES))
    for name, tensor in renamed(layout.to_native(problem.tensors, table, problem.config), names).items():
        attributes.at(backbone, name).assign(tensor)
