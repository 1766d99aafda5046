"""BERT, GPT-2 and Llama of Hugging Face `transformers`, which load our weights from a folder."""

import copy
import functools
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from impl_torch import weights

from ... import checkpoints
from ..problem import Problem
from ..timed_rows import Call, Row
from ..workloads import PADDING
from .torch_stock import read, waiting

CLASSES = {"BERT": "BertModel", "GPT-2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}


def rows(problem: Problem, device: str) -> list[Row]:
    """Returns rows for BERT's hidden states, and for a decoder's greedy search with its cache, eager and compiled."""
    start = {"encoder": _pass, "greedy": _generate}.get(problem.task.kind)
    if start is None:
        return []
    row = functools.partial(Row, "torch", peer=True, read=read)
    return [
        row(f"transformers {problem.task.published} {how}", compiles=compiles, start=functools.partial(start, problem, device, compiles))
        for how, compiles in (("eager", False), ("compiled", True))
    ]


class Decoder(nn.Module):
    """A causal language model, called as ours is."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.model = loaded(problem)

    def forward(self, source: None, target: Tensor) -> Tensor:
        return self.model(input_ids=target, use_cache=False).logits


def loaded(problem: Problem, **options: Any) -> Any:
    """Returns the model of the task's family with our weights."""
    import transformers
    from transformers.utils import logging

    kind = getattr(transformers, CLASSES[problem.task.published])
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # the library warns about fresh weights
    with tempfile.TemporaryDirectory() as folder:
        # its padding is given by the mask, not by an id
        checkpoints.save(f"{folder}/model", problem.config.replace(padding_id=None), problem.tensors, "hugging-face")
        return copy.deepcopy(kind.from_pretrained(f"{folder}/model", **options)).eval()  # tensors that are not views of the file


def _pass(problem: Problem, device: str, compiles: bool) -> Call:
    model = loaded(problem, add_pooling_layer=False).to(device)
    source = weights.from_numpy(problem.source, device)
    function: Callable[..., Any] = torch.compile(model) if compiles else model
    return waiting(lambda: function(input_ids=source, attention_mask=source != PADDING).last_hidden_state, device)


def _generate(problem: Problem, device: str, compiles: bool) -> Call:
    """Compiled, the prompt is read eagerly and each step is one graph on a static cache, as its documentation says."""
    from transformers import CompileConfig

    model, count = loaded(problem).to(device), problem.task.new_tokens
    prompt = weights.from_numpy(problem.source, device)
    options: dict[str, Any] = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "use_cache": True}
    options |= {"max_new_tokens": count, "eos_token_id": None, "pad_token_id": PADDING}  # no token ends an answer
    if compiles:
        how = CompileConfig(mode="default")
        how._compile_all_devices = True  # type: ignore[assignment]  # otherwise it compiles for GPUs alone
        options |= {"cache_implementation": "static", "compile_config": how}
    return waiting(lambda: {"token_bn": model.generate(prompt, **options)[:, prompt.shape[1] :]}, device)
