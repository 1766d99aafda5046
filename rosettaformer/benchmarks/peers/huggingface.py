"""The seq2seq models of Hugging Face `transformers`: Marian, which searches with our weights, and BART and T5 of the same sizes."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from impl_torch import weights
from reference_numpy import layout
from reference_numpy.positional_encoding import positional_encoding

from ..problem import Problem, renamed
from ..timed_rows import Call, Row
from ..workloads import END, PADDING, START
from .torch_stock import read, waiting

# parts of our names in torch's layout -> Marian's
MARIAN = {
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "feed_forward.hidden": "fc1",
    "feed_forward.output": "fc2",
    "feed_forward_norm": "final_layer_norm",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "out_proj",
    "attn_norm": "attn_layer_norm",
}


def rows(problem: Problem, device: str) -> list[Row]:
    """Searches are eager with their caches, as `generate` runs them; the forward pass, of Marian only, is compiled."""
    if not problem.task.decodes:
        start = functools.partial(_pass, problem, device)
        return [Row("torch", "transformers Marian compiled", peer=True, compiles=True, comparable=False, start=start, read=read)]
    return [
        Row("torch", name, peer=True, comparable=build is marian, start=functools.partial(_generate, build, problem, device), read=read)
        for name, build in (("transformers Marian", marian), ("transformers BART", _bart), ("transformers T5", _t5))
    ]


def marian(problem: Problem) -> nn.Module:
    """Returns the paper's model with our weights."""
    config, model, ours = problem.config, _marian(problem), layout.to_native(problem.tensors, weights.TABLE, problem.config)
    shared, bias = ours.pop("source_embedding.weight"), ours.pop("logits.bias")
    table = positional_encoding(np.arange(_longest(problem)), config.model_width, "float32")  # Marian puts sines before cosines
    new = {"model.shared.weight": shared, "lm_head.weight": shared, "final_logits_bias": bias[None]}
    for stack in ("encoder", "decoder"):
        new |= {f"model.{stack}.embed_tokens.weight": shared, f"model.{stack}.embed_positions.weight": table}
    new |= {f"model.{name}": tensor for name, tensor in renamed(ours, MARIAN).items()}
    model.load_state_dict({name: weights.from_numpy(array) for name, array in new.items()})
    return model


def _marian(problem: Problem) -> Any:
    from transformers import MarianConfig, MarianMTModel

    vocabulary = problem.config.target_vocabulary
    return MarianMTModel(MarianConfig(**_shared(problem), activation_function="relu", scale_embedding=True, decoder_vocab_size=vocabulary))


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
    """Times a model with fresh weights, whose three tables are one."""
    model = torch.compile(_marian(problem).to(device).eval())
    source, target = (weights.from_numpy(token, device) for token in (problem.source, problem.target))
    masks = {"attention_mask": source != PADDING, "decoder_attention_mask": target != PADDING}
    return waiting(lambda: model(input_ids=source, decoder_input_ids=target, use_cache=False, **masks).logits, device)


def _generate(build: Callable[[Problem], Any], problem: Problem, device: str) -> Call:
    model, strategy = build(problem).to(device).eval(), problem.strategy
    source = weights.from_numpy(problem.source, device)
    options: dict[str, Any] = {
        "attention_mask": (source != PADDING).long(), "num_beams": strategy.beam_size, "do_sample": False, "use_cache": True,
        "min_new_tokens": strategy.min_new_tokens, "max_new_tokens": strategy.max_new_tokens, "length_penalty": strategy.alpha,
    }  # fmt: skip
    return waiting(lambda: {"token_bn": model.generate(source, **options)[:, 1:]}, device)
