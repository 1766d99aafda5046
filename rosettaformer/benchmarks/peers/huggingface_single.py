"""BERT and GPT-2 of Hugging Face `transformers`, with our weights."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from impl_torch import weights
from reference_numpy import layout

from ..problem import Problem, renamed
from ..rows import Call, Row
from ..workloads import PADDING
from .torch_stock import read, waiting

__all__ = ["bert", "gpt2", "rows"]

# the axes of a linear layer (BERT) and of a Conv1D (GPT-2)
_SHARED: layout.Table = (
    *(("table", "weight", f"{rows} d") for rows in "vpa"),
    *((f"{name}.bias", f"{name}.bias", f"({heads})") for name, heads in (("query", "h k"), ("key", "g k"), ("value", "g e"))),
    ("output.bias", "output.bias", "d"),
    ("hidden.bias", "hidden.bias", "f"),
    ("scale", "weight", "d"),
    ("offset", "bias", "d"),
)
LINEAR: layout.Table = (
    *_SHARED,
    *((f"{name}.kernel", f"{name}.weight", f"({heads}) d") for name, heads in (("query", "h k"), ("key", "g k"), ("value", "g e"))),
    ("output.kernel", "output.weight", "d (h e)"),
    ("hidden.kernel", "hidden.weight", "f d"),
    ("output.kernel", "output.weight", "d f"),
)
CONV1D: layout.Table = (
    *_SHARED,
    *((f"{name}.kernel", f"{name}.weight", f"d ({heads})") for name, heads in (("query", "h k"), ("key", "g k"), ("value", "g e"))),
    ("output.kernel", "output.weight", "(h e) d"),
    ("hidden.kernel", "hidden.weight", "d f"),
    ("output.kernel", "output.weight", "f d"),
)
# parts of our names in these layouts -> theirs
BERT = {
    "source_embedding_norm": "embeddings.LayerNorm",
    "source_embedding": "embeddings.word_embeddings",
    "source_position_embedding": "embeddings.position_embeddings",
    "source_segment_embedding": "embeddings.token_type_embeddings",
    "encoder.layers": "encoder.layer",
    "self_attention_norm": "attention.output.LayerNorm",
    "feed_forward_norm": "output.LayerNorm",
    "self_attention.output": "attention.output.dense",
    "self_attention": "attention.self",
    "feed_forward.hidden": "intermediate.dense",
    "feed_forward.output": "output.dense",
}
GPT2 = {
    "target_embedding": "wte",
    "target_position_embedding": "wpe",
    "decoder.final_norm": "ln_f",
    "decoder.layers": "h",
    "self_attention_norm": "ln_1",
    "feed_forward_norm": "ln_2",
    "self_attention.output": "attn.c_proj",
    "self_attention": "attn",
    "feed_forward.hidden": "mlp.c_fc",
    "feed_forward.output": "mlp.c_proj",
}


def rows(problem: Problem, device: str) -> list[Row]:
    """BERT's hidden states and GPT-2's greedy search with its cache, eager and compiled."""
    name, start = ("GPT-2", _generate) if problem.task.decodes else ("BERT", _pass)
    return [
        Row("torch", f"transformers {name} {how}", peer=True, compiles=compiles, start=functools.partial(start, problem, device, compiles), read=read)
        for how, compiles in (("eager", False), ("compiled", True))
    ]


def bert(problem: Problem, pooler: bool = False) -> Any:
    from transformers import BertConfig, BertModel

    config, sizes = problem.config, problem.config.sizes
    model = BertModel(
        BertConfig(
            vocab_size=config.source_vocabulary, hidden_size=config.model_width, num_hidden_layers=config.encoder_layers,
            num_attention_heads=config.heads, intermediate_size=config.feed_forward_width, hidden_act="gelu", pad_token_id=PADDING,
            max_position_embeddings=sizes["p"], type_vocab_size=sizes["a"], layer_norm_eps=config.epsilon,
        ),
        add_pooling_layer=pooler,
    )  # fmt: skip
    return _filled(model, renamed(layout.to_native(problem.tensors, LINEAR, config), BERT))


def gpt2(problem: Problem) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = problem.config
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.target_vocabulary, n_embd=config.model_width, n_layer=config.decoder_layers, n_head=config.heads,
            n_inner=config.feed_forward_width, n_positions=config.max_positions, activation_function="gelu_new",
            layer_norm_epsilon=config.epsilon, bos_token_id=None, eos_token_id=None, pad_token_id=PADDING,
        )
    )  # fmt: skip
    tensors = renamed(layout.to_native(problem.tensors, CONV1D, config), GPT2)
    for layer in range(config.decoder_layers):
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"h.{layer}.attn.{name}.{kind}") for name in ("query", "key", "value")]
            tensors[f"h.{layer}.attn.c_attn.{kind}"] = np.concatenate(parts, axis=-1)
    _filled(model.transformer, tensors)
    return model


def _filled(model: Any, tensors: dict[str, np.ndarray]) -> Any:
    """The model with these tensors; a pooler keeps its own."""
    found = model.load_state_dict({name: weights.from_numpy(tensor) for name, tensor in tensors.items()}, strict=False)
    if found.unexpected_keys or any(not name.startswith("pooler") for name in found.missing_keys):
        raise RuntimeError(f"the tensors do not fit: {found}")
    return model.eval()


def _pass(problem: Problem, device: str, compiles: bool) -> Call:
    model = bert(problem).to(device)
    source = weights.from_numpy(problem.source, device)
    function: Callable[..., Any] = torch.compile(model) if compiles else model
    return waiting(lambda: function(input_ids=source, attention_mask=source != PADDING).last_hidden_state, device)


def _generate(problem: Problem, device: str, compiles: bool) -> Call:
    """Compiled, each step is one graph on a static cache, as its documents have it."""
    model, count = gpt2(problem).to(device), problem.task.new_tokens
    prompt = weights.from_numpy(problem.source, device)
    options: dict[str, Any] = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "use_cache": True}
    options |= {"min_new_tokens": count, "max_new_tokens": count}
    if compiles:
        from transformers import CompileConfig

        options["compile_config"] = how = CompileConfig(mode="default")
        how._compile_all_devices = True  # it compiles for GPUs alone otherwise
        options["cache_implementation"] = "static"
    return waiting(lambda: {"token_bn": model.generate(prompt, **options)[:, prompt.shape[1] :]}, device)
