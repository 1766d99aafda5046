"""BERT and GPT-2 of Hugging Face `transformers`, which load our weights from a folder."""

import copy
import functools
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from impl_torch import weights

from ... import checkpoints
from ..problem import Problem
from ..timed_rows import Call, Row
from ..workloads import PADDING
from .torch_stock import read, waiting


def rows(problem: Problem, device: str) -> list[Row]:
    """Returns rows for BERT's hidden states and GPT-2's greedy search with its cache, eager and compiled."""
    name, start = ("GPT-2", _generate) if problem.task.decodes else ("BERT", _pass)
    row = functools.partial(Row, "torch", peer=True, read=read)
    return [
        row(f"transformers {name} {how}", compiles=compiles, start=functools.partial(start, problem, device, compiles))
        for how, compiles in (("eager", False), ("compiled", True))
    ]


def bert(problem: Problem, pooler: bool = False) -> Any:
    """Returns the encoder; pooler: with fresh weights."""
    from transformers import BertModel

    return _loaded(BertModel, problem, add_pooling_layer=pooler)


def gpt2(problem: Problem) -> Any:
    from transformers import GPT2LMHeadModel

    return _loaded(GPT2LMHeadModel, problem)


def _loaded(kind: Any, problem: Problem, **options: Any) -> Any:
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # the library warns about fresh weights
    with tempfile.TemporaryDirectory() as folder:
        # its padding is given by the mask, not by an id
        checkpoints.save(f"{folder}/model", problem.config.replace(padding_id=None), problem.tensors, "hugging-face")
        return copy.deepcopy(kind.from_pretrained(f"{folder}/model", **options)).eval()  # tensors that are not views of the file


def _pass(problem: Problem, device: str, compiles: bool) -> Call:
    model = bert(problem).to(device)
    source = weights.from_numpy(problem.source, device)
    function: Callable[..., Any] = torch.compile(model) if compiles else model
    return waiting(lambda: function(input_ids=source, attention_mask=source != PADDING).last_hidden_state, device)


def _generate(problem: Problem, device: str, compiles: bool) -> Call:
    """Compiled, the prompt is read eagerly and each step is one graph on a static cache, as its documentation says."""
    from transformers import CompileConfig

    model, count = gpt2(problem).to(device), problem.task.new_tokens
    prompt = weights.from_numpy(problem.source, device)
    options: dict[str, Any] = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "use_cache": True}
    options |= {"max_new_tokens": count, "eos_token_id": None, "pad_token_id": PADDING}  # no token ends an answer
    if compiles:
        how = CompileConfig(mode="default")
        how._compile_all_devices = True  # type: ignore[assignment]  # otherwise it compiles for GPUs alone
        options |= {"cache_implementation": "static", "compile_config": how}
    return waiting(lambda: {"token_bn": model.generate(prompt, **options)[:, prompt.shape[1] :]}, device)
