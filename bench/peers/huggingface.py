"""Hugging Face transformers' Marian, BERT, GPT-2, Llama and Mixtral with our weights."""

import copy
import functools
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from impl_torch import weights
from reference_numpy import layout
from reference_numpy.positional_encoding import positional_encoding
from rosettaformer.comparison.timing.rows import Call, Row
from rosettaformer.files import checkpoints

from ..problem import Problem, renamed
from ..workloads import END, PADDING, START
from .torch_stock import read, waiting

CLASSES = {"BERT": "BertModel", "GPT-2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM", "Mixtral": "MixtralForCausalLM"}
EAGER, COMPILED = ("eager", False), ("compiled", True)
# parts of our torch names -> Marian's
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
    """Returns rows for cached searches (Marian's are eager) and BERT's hidden states."""
    row = functools.partial(Row, "torch", peer=True, read=read)
    published, kind = problem.task.published, problem.task.kind
    if not published:
        return [row("transformers Marian", start=functools.partial(_translate, problem, device))]
    start = {"encoder": _pass, "greedy": _generate}.get(kind)
    return [
        row(f"{name} {how}", compiles=compiles, start=functools.partial(start, problem, device, compiles, **options))
        for name, options, ways in kinds(problem)
        for how, compiles in ways
        if start is not None
    ]


def kinds(problem: Problem) -> list[tuple[str, dict[str, Any], list[tuple[str, bool]]]]:
    """Returns names, options and ways to run the family's models. A loop over experts is no graph."""
    name = f"transformers {problem.task.published}"
    if not problem.config.experts:
        return [(name, {}, [EAGER, COMPILED])]
    return [
        (f"{name}, loop over experts,", {"experts_implementation": "eager"}, [EAGER]),
        (f"{name}, grouped_mm,", {"experts_implementation": "grouped_mm"}, [EAGER, COMPILED]),
    ]


class Decoder(nn.Module):
    """A causal language model with our models' call signature."""

    def __init__(self, problem: Problem, **options: Any) -> None:
        super().__init__()
        self.model = loaded(problem, **options)

    def forward(self, source: None, target: Tensor) -> Tensor:
        return self.model(input_ids=target, use_cache=False).logits


def loaded(problem: Problem, **options: Any) -> Any:
    """Returns the model of the task's family with our weights."""
    import transformers
    from transformers.utils import logging

    kind = getattr(transformers, CLASSES[problem.task.published])
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # silences a warning about new weights
    with tempfile.TemporaryDirectory() as folder:
        # padding is marked by the mask, not by an id
        checkpoints.save(f"{folder}/model", problem.config.replace(padding_id=None), problem.tensors, "hugging-face")
        return copy.deepcopy(kind.from_pretrained(f"{folder}/model", **options)).eval()  # tensors that do not alias the file


def _pass(problem: Problem, device: str, compiles: bool) -> Call:
    model = loaded(problem, add_pooling_layer=False).to(device)
    source = weights.from_numpy(problem.source, device)
    function: Callable[..., Any] = torch.compile(model) if compiles else model
    return waiting(lambda: function(input_ids=source, attention_mask=source != PADDING).last_hidden_state, device)


def _generate(problem: Problem, device: str, compiles: bool, **options: Any) -> Call:
    """Generates. If compiled, each step is one graph with a static cache."""
    from transformers import CompileConfig

    model, count = loaded(problem, **options).to(device), problem.task.new_tokens
    prompt = weights.from_numpy(problem.source, device)
    options = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "use_cache": True}
    options |= {"max_new_tokens": count, "eos_token_id": None, "pad_token_id": PADDING}  # no end token
    if compiles:
        how = CompileConfig(mode="default")
        how._compile_all_devices = True  # type: ignore[assignment]  # otherwise it compiles for GPUs alone
        options |= {"cache_implementation": "static", "compile_config": how}
    return waiting(lambda: {"token_bn": model.generate(prompt, **options)[:, prompt.shape[1] :]}, device)


def marian(problem: Problem) -> nn.Module:
    """Returns the paper's model with our weights."""
    from transformers import MarianConfig, MarianMTModel

    config, vocabulary = problem.config, problem.config.target_vocabulary
    longest = max(problem.task.length, problem.task.new_tokens + 1)
    model: Any = MarianMTModel(MarianConfig(
        vocab_size=vocabulary, decoder_vocab_size=vocabulary, d_model=config.model_width, max_position_embeddings=longest,
        encoder_layers=config.encoder_layers, encoder_attention_heads=config.heads, encoder_ffn_dim=config.feed_forward_width,
        decoder_layers=config.decoder_layers, decoder_attention_heads=config.heads, decoder_ffn_dim=config.feed_forward_width,
        activation_function="relu", scale_embedding=True, pad_token_id=PADDING, bos_token_id=START, eos_token_id=END,
        decoder_start_token_id=START, forced_eos_token_id=None,
    ))  # fmt: skip
    ours = layout.to_native(problem.tensors, weights.TABLE, config)
    shared, bias = ours.pop("source_embedding.weight"), ours.pop("logits.bias")
    table = positional_encoding(np.arange(longest), config.model_width, "float32")  # Marian's order: sines, then cosines
    new = {"model.shared.weight": shared, "lm_head.weight": shared, "final_logits_bias": bias[None]}
    for stack in ("encoder", "decoder"):
        new |= {f"model.{stack}.embed_tokens.weight": shared, f"model.{stack}.embed_positions.weight": table}
    new |= {f"model.{name}": tensor for name, tensor in renamed(ours, MARIAN).items()}
    model.load_state_dict({name: weights.from_numpy(array) for name, array in new.items()})
    return model


def _translate(problem: Problem, device: str) -> Call:
    model: Any = marian(problem).to(device).eval()
    source, strategy = weights.from_numpy(problem.source, device), problem.strategy
    options: dict[str, Any] = {
        "attention_mask": (source != PADDING).long(), "num_beams": strategy.beam_size, "do_sample": False, "use_cache": True,
        "min_new_tokens": strategy.min_new_tokens, "max_new_tokens": strategy.max_new_tokens, "length_penalty": strategy.alpha,
    }  # fmt: skip
    return waiting(lambda: {"token_bn": model.generate(source, **options)[:, 1:]}, device)
