"""The seq2seq models of Hugging Face `transformers`: Marian, which searches with our weights, and BART and T5 of the same sizes."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from impl_torch import weights
from reference_numpy.positional_encoding import positional_encoding

from ..problem import Problem
from ..rows import Call, Row
from ..workloads import END, PADDING, START

__all__ = ["marian", "rows"]

# The attention and norms of a layer, ours and Marian's.
LAYER = {
    "self_attention.query": "self_attn.q_proj",
    "self_attention.key": "self_attn.k_proj",
    "self_attention.value": "self_attn.v_proj",
    "self_attention.output": "self_attn.out_proj",
    "self_attention_norm": "self_attn_layer_norm",
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward.hidden": "fc1",
    "feed_forward.output": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
TENSOR = {"kernel": "weight", "bias": "bias", "scale": "weight", "offset": "bias"}


def rows(problem: Problem, device: str) -> list[Row]:
    """Searches are eager, as `generate` runs them, with their caches; a forward pass, of Marian alone, is compiled."""
    if not problem.task.decodes:
        start = functools.partial(_pass, problem, device)
        return [Row("torch", "transformers Marian compiled", start, peer=True, compiles=True, comparable=False)]

    def row(name: str, build: Callable[[Problem], nn.Module], comparable: bool) -> Row:
        def start() -> Call:
            return _generate(build(problem).to(device).eval(), problem, device)

        return Row("torch", name, start, _read, peer=True, comparable=comparable)

    return [row("transformers Marian", marian, True), row("transformers BART", _bart, False), row("transformers T5", _t5, False)]


def marian(problem: Problem) -> nn.Module:
    """The paper's model with our weights."""
    config, model, ours = problem.config, _marian(problem), problem.tensors
    table = positional_encoding(np.arange(_longest(problem)), config.model_width, "float32")  # Marian's has sines before cosines
    new = {"model.shared.weight": ours["source_embedding.table"], "final_logits_bias": ours["logits.bias"][None]}
    for stack in ("encoder", "decoder"):
        new[f"model.{stack}.embed_tokens.weight"] = ours["source_embedding.table"]
        new[f"model.{stack}.embed_positions.weight"] = table
    new["lm_head.weight"] = ours["source_embedding.table"]
    for name, tensor in ours.items():
        if ".layers." in name:
            new[_native(name)] = tensor.reshape(_matrix(name, tensor.shape)).T if name.endswith("kernel") else tensor.reshape(-1)
    model.load_state_dict({name: weights.from_numpy(np.ascontiguousarray(array)) for name, array in new.items()})
    return model


def _marian(problem: Problem) -> Any:
    from transformers import MarianConfig, MarianMTModel

    vocabulary = problem.config.target_vocabulary
    return MarianMTModel(MarianConfig(**_shared(problem), activation_function="relu", scale_embedding=True, decoder_vocab_size=vocabulary))


def _native(name: str) -> str:
    stack, _, index, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"model.{stack}.layers.{index}.{LAYER[part]}.{TENSOR[kind]}"


def _matrix(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """A kernel `d h k` or `h e d` as the matrix of its product."""
    if len(shape) == 2:
        return shape  # type: ignore[return-value]
    return (shape[0] * shape[1], shape[2]) if name.endswith("attention.output.kernel") else (shape[0], shape[1] * shape[2])


def _bart(problem: Problem) -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(BartConfig(**_shared(problem)))


def _t5(problem: Problem) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = problem.config
    sizes: dict[str, Any] = {
        "vocab_size": config.target_vocabulary, "d_model": config.model_width, "d_kv": config.key_size,
        "d_ff": config.feed_forward_width, "num_layers": config.encoder_layers, "num_decoder_layers": config.decoder_layers,
        "num_heads": config.heads, "pad_token_id": PADDING, "eos_token_id": END, "decoder_start_token_id": START,
    }  # fmt: skip
    return T5ForConditionalGeneration(T5Config(**sizes))


def _shared(problem: Problem) -> dict[str, Any]:
    config = problem.config
    return {
        "vocab_size": config.source_vocabulary, "d_model": config.model_width, "max_position_embeddings": _longest(problem),
        "encoder_layers": config.encoder_layers, "decoder_layers": config.decoder_layers, "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads, "encoder_ffn_dim": config.feed_forward_width, "decoder_ffn_dim": config.feed_forward_width,
        "pad_token_id": PADDING, "eos_token_id": END, "forced_eos_token_id": None, "bos_token_id": START, "decoder_start_token_id": START,
    }  # fmt: skip


def _longest(problem: Problem) -> int:
    return max(problem.task.length, problem.task.new_tokens + 1)


def _pass(problem: Problem, device: str) -> Call:
    """Of a model with fresh weights: its three tables are one."""
    model = torch.compile(_marian(problem).to(device).eval())
    source, target = (weights.from_numpy(token, device) for token in (problem.source, problem.target))
    masks = {"attention_mask": source != PADDING, "decoder_attention_mask": target != PADDING}

    @torch.inference_mode()
    def call() -> Tensor:
        logits = model(input_ids=source, decoder_input_ids=target, use_cache=False, **masks).logits
        if device == "cuda":
            torch.cuda.synchronize()
        return logits

    return call


def _generate(model: Any, problem: Problem, device: str) -> Call:
    strategy = problem.strategy
    source = weights.from_numpy(problem.source, device)
    options: dict[str, Any] = {
        "attention_mask": (source != PADDING).long(), "num_beams": strategy.beam_size, "do_sample": False, "use_cache": True,
        "min_new_tokens": strategy.min_new_tokens, "max_new_tokens": strategy.max_new_tokens, "length_penalty": strategy.alpha,
    }  # fmt: skip

    @torch.inference_mode()
    def call() -> Tensor:
        token = model.generate(source, **options)
        if device == "cuda":
            torch.cuda.synchronize()
        return token

    return call


def _read(token: Tensor) -> dict[str, np.ndarray]:
    return {"token_bn": weights.to_numpy(token)[:, 1:]}
