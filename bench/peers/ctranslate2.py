"""CTranslate2: Marian, BERT, GPT-2 and Llama, converted with our weights, in float32 and int8."""

import functools
import math
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rosettaformer.comparison.timing.rows import Call, Row, named

from ..problem import Problem
from ..workloads import END, PADDING, START
from . import huggingface


def describe(device: str) -> str:
    """Returns no description in addition to torch's."""
    return f"{torch.get_num_threads()} threads, each with a share of the rows" if device == "cpu" else ""


def rows(problem: Problem, device: str) -> list[Row]:
    """Returns rows for its searches, BERT's hidden states and Llama's logits. It neither trains nor has experts."""
    task = problem.task
    ways: dict[str, tuple[Callable[..., Call], Callable[[Any], Mapping[str, np.ndarray]]]] = {
        "encoder": (_encode, named),
        "forward": (_logits, named),
        "greedy": (_generate, _read_sequences) if task.published else (_translate, _read_hypotheses),
        "beam": (_translate, _read_hypotheses),
    }
    if task.kind not in ways or problem.config.experts:
        return []
    start, read = ways[task.kind]
    return [
        Row(
            "ctranslate2", f"CTranslate2 {task.published or 'Marian'}", precision, peer=True,
            start=functools.partial(start, problem, device, precision), read=read,
        )
        for precision in task.precisions_on(device, of=("float32", "int8"))
    ]  # fmt: skip


def _translate(problem: Problem, device: str, precision: str) -> Call:
    translator, workers = _loaded("Translator", _marian, problem, device, precision)
    strategy = problem.strategy
    source = [[str(token) for token in row[row != PADDING]] for row in problem.source]
    options: dict[str, Any] = {
        "beam_size": strategy.beam_size, "length_penalty": strategy.alpha, "min_decoding_length": strategy.max_new_tokens,
        "max_decoding_length": strategy.max_new_tokens, "max_batch_size": math.ceil(len(source) / workers),
    }  # fmt: skip
    return lambda: translator.translate_batch(source, **options)


def _generate(problem: Problem, device: str, precision: str) -> Call:
    generator, workers = _loaded("Generator", _decoder, problem, device, precision)
    prompt, count = [[str(token) for token in row] for row in problem.source], problem.task.new_tokens
    options: dict[str, Any] = {
        "min_length": count, "max_length": count, "include_prompt_in_result": False, "max_batch_size": math.ceil(len(prompt) / workers),
    }  # fmt: skip
    return lambda: generator.generate_batch(prompt, **options)


def _encode(problem: Problem, device: str, precision: str) -> Call:
    encoder, workers = _loaded("Encoder", _bert, problem, device, precision)
    return _in_shares(lambda share: encoder.forward_batch(share).last_hidden_state, problem.source, problem.config.model_width, workers)


def _logits(problem: Problem, device: str, precision: str) -> Call:
    generator, workers = _loaded("Generator", _decoder, problem, device, precision)
    return _in_shares(generator.forward_batch, problem.target, problem.config.target_vocabulary, workers)


def _in_shares(forward: Callable[[list[list[int]]], Any], token_bt: np.ndarray, width: int, workers: int) -> Call:
    """Returns a call that gives each worker a share of the rows. width: of the output per token."""
    rows = [row[row != PADDING].tolist() for row in token_bt]
    shares = [rows[index::workers] for index in range(workers)]
    threads = ThreadPoolExecutor(workers)

    def call() -> np.ndarray:
        found = np.zeros((*token_bt.shape, width), np.float32)
        for index, output in enumerate(threads.map(forward, shares)):
            output_btd = np.array(output)
            found[index::workers, : output_btd.shape[1]] = output_btd
        return found

    return call


def _loaded(kind: str, convert: Any, problem: Problem, device: str, precision: str) -> tuple[Any, int]:
    """Returns the converted model, and the number of shares to split the rows into.

    On a CPU, each thread takes its own share: using all threads for one row after another takes
    longer.
    """
    import ctranslate2

    workers = torch.get_num_threads() if device == "cpu" else 1
    with tempfile.TemporaryDirectory() as folder:
        with torch.no_grad():
            spec = convert(problem)
        spec.validate()
        spec.optimize()
        spec.save(folder)
        model = getattr(ctranslate2, kind)
        how: dict[str, Any] = {"inter_threads": workers, "intra_threads": 1}
        return model(folder, device=device, compute_type=precision, **how), workers


def _marian(problem: Problem) -> Any:
    """Converts with BART's loader, since Marian's expects a zero start embedding."""
    from ctranslate2.converters.transformers import BartLoader

    class Loader(BartLoader):
        def get_model_spec(self, model: Any) -> Any:
            model.config.normalize_before = model.config.normalize_embedding = False
            return super().get_model_spec(model)

    return Loader()(huggingface.marian(problem), _tokenizer(problem))


def _bert(problem: Problem) -> Any:
    """Adds a pooler and a name for the positions, which the loader requires."""
    from ctranslate2.converters.transformers import BertLoader

    model = huggingface.loaded(problem, add_pooling_layer=True)
    model.config.position_embedding_type = "absolute"
    return BertLoader()(model, _tokenizer(problem))


def _decoder(problem: Problem) -> Any:
    from ctranslate2.converters import transformers

    loader = {"GPT-2": "GPT2Loader", "Llama": "LlamaLoader"}[problem.task.published]
    return getattr(transformers, loader)()(huggingface.loaded(problem), _tokenizer(problem))


def _tokenizer(problem: Problem) -> Any:
    """Returns a tokenizer that uses the ids as tokens."""
    names = [str(token) for token in range(problem.config.target_vocabulary)]
    return SimpleNamespace(
        get_vocab=lambda: {name: token for token, name in enumerate(names)}, convert_ids_to_tokens=lambda token: names[token],
        bos_token=names[START], eos_token=names[END], unk_token=names[PADDING],
    )  # fmt: skip


def _read_hypotheses(found: Any) -> dict[str, np.ndarray]:
    return {"token_bn": np.array([[int(name) for name in result.hypotheses[0]] for result in found])}


def _read_sequences(found: Any) -> dict[str, np.ndarray]:
    return {"token_bn": np.array([result.sequences_ids[0] for result in found])}
