"""CTranslate2: Marian with our weights, converted by CTranslate2's own converter, in float32."""

import math
import tempfile
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..problem import Problem
from ..rows import Call, Row
from ..workloads import END, PADDING, START
from . import huggingface

__all__ = ["describe", "rows"]


def describe(device: str) -> str:
    """Nothing but what torch says of the device."""
    return f"{torch.get_num_threads()} threads, each with its share of the rows" if device == "cpu" else ""


def rows(problem: Problem, device: str) -> list[Row]:
    """Its searches."""
    return [Row("ctranslate2", "CTranslate2 Marian", peer=True, start=lambda: _start(problem, device), read=_read)]


def _start(problem: Problem, device: str) -> Call:
    """On a CPU each thread has its share of the rows: all of them at one row after another take longer."""
    import ctranslate2

    workers = torch.get_num_threads() if device == "cpu" else 1

    with tempfile.TemporaryDirectory() as folder:
        _convert(problem, folder)
        translator = ctranslate2.Translator(folder, device=device, compute_type="float32", inter_threads=workers, intra_threads=1)
    strategy = problem.strategy
    source = [[str(token) for token in row[row != PADDING]] for row in problem.source]
    options: dict[str, Any] = {
        "beam_size": strategy.beam_size, "length_penalty": strategy.alpha, "min_decoding_length": strategy.max_new_tokens,
        "max_decoding_length": strategy.max_new_tokens, "max_batch_size": math.ceil(len(source) / workers),
    }  # fmt: skip
    return lambda: translator.translate_batch(source, **options)


def _convert(problem: Problem, folder: str) -> None:
    """By the converter's loader of BART, of which Marian's is one that starts with a zero embedding, as ours does not."""
    from ctranslate2.converters.transformers import BartLoader

    class Loader(BartLoader):
        def get_model_spec(self, model: Any) -> Any:
            model.config.normalize_before = model.config.normalize_embedding = False
            return super().get_model_spec(model)

    names = [str(token) for token in range(problem.config.target_vocabulary)]
    tokenizer = SimpleNamespace(
        get_vocab=lambda: {name: token for token, name in enumerate(names)}, convert_ids_to_tokens=lambda token: names[token],
        bos_token=names[START], eos_token=names[END], unk_token=names[PADDING],
    )  # fmt: skip
    with torch.no_grad():
        spec = Loader()(huggingface.marian(problem), tokenizer)
    spec.validate()
    spec.optimize()
    spec.save(folder)


def _read(found: Any) -> dict[str, np.ndarray]:
    return {"token_bn": np.array([[int(name) for name in result.hypotheses[0]] for result in found])}
