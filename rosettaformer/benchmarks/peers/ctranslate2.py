"""CTranslate2: Marian, BERT and GPT-2 with our weights, converted by CTranslate2's own converters, in float32 and int8."""

import functools
import math
import tempfile
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..problem import Problem
from ..timed_rows import Call, Row
from ..workloads import END, PADDING, START
from . import huggingface, huggingface_single


def describe(device: str) -> str:
    """Adds nothing to torch's description of the device."""
    return f"{torch.get_num_threads()} threads, each with its share of the rows" if device == "cpu" else ""


def rows(problem: Problem, device: str) -> list[Row]:
    """Returns rows for its searches, and for BERT's hidden states."""
    if problem.task.published == "BERT":
        return [Row("ctranslate2", "CTranslate2 BERT", peer=True, start=lambda: _encode(problem, device))]
    if problem.task.published == "GPT-2":
        return [Row("ctranslate2", "CTranslate2 GPT-2", peer=True, start=lambda: _generate(problem, device), read=_read_sequences)]
    if problem.task.published:
        return []
    return [
        Row(
            "ctranslate2", "CTranslate2 Marian", precision, peer=True,
            start=functools.partial(_translate, problem, device, precision), read=_read_hypotheses,
        )
        for precision in problem.task.precisions_on(device, of=("float32", "int8"))
    ]  # fmt: skip


def _translate(problem: Problem, device: str, precision: str) -> Call:
    import ctranslate2

    translator, workers = _loaded(ctranslate2.Translator, _marian, problem, device, precision)
    strategy = problem.strategy
    source = [[str(token) for token in row[row != PADDING]] for row in problem.source]
    options: dict[str, Any] = {
        "beam_size": strategy.beam_size, "length_penalty": strategy.alpha, "min_decoding_length": strategy.max_new_tokens,
        "max_decoding_length": strategy.max_new_tokens, "max_batch_size": math.ceil(len(source) / workers),
    }  # fmt: skip
    return lambda: translator.translate_batch(source, **options)


def _generate(problem: Problem, device: str) -> Call:
    import ctranslate2

    generator, workers = _loaded(ctranslate2.Generator, _gpt2, problem, device)
    prompt, count = [[str(token) for token in row] for row in problem.source], problem.task.new_tokens
    options: dict[str, Any] = {
        "min_length": count, "max_length": count, "include_prompt_in_result": False, "max_batch_size": math.ceil(len(prompt) / workers),
    }  # fmt: skip
    return lambda: generator.generate_batch(prompt, **options)


def _encode(problem: Problem, device: str) -> Call:
    import ctranslate2

    encoder, workers = _loaded(ctranslate2.Encoder, _bert, problem, device)
    source = [row[row != PADDING].tolist() for row in problem.source]
    shares = [source[index::workers] for index in range(workers)]
    threads = ThreadPoolExecutor(workers)

    def call() -> np.ndarray:
        found = np.zeros((*problem.source.shape, problem.config.model_width), np.float32)
        for index, output in enumerate(threads.map(encoder.forward_batch, shares)):
            state_bsd = np.array(output.last_hidden_state)
            found[index::workers, : state_bsd.shape[1]] = state_bsd
        return found

    return call


def _loaded(kind: Any, convert: Any, problem: Problem, device: str, precision: str = "float32") -> tuple[Any, int]:
    """Returns the converted model, and into how many shares to split the rows: on a CPU each thread takes its own, since all threads on one
    row after another take longer.
    """
    workers = torch.get_num_threads() if device == "cpu" else 1
    with tempfile.TemporaryDirectory() as folder:
        with torch.no_grad():
            spec = convert(problem)
        spec.validate()
        spec.optimize()
        spec.save(folder)
        return kind(folder, device=device, compute_type=precision, inter_threads=workers, intra_threads=1), workers


def _marian(problem: Problem) -> Any:
    """Converts by the loader of BART; Marian's differs by a zero start embedding, which ours does not have."""
    from ctranslate2.converters.transformers import BartLoader

    class Loader(BartLoader):
        def get_model_spec(self, model: Any) -> Any:
            model.config.normalize_before = model.config.normalize_embedding = False
            return super().get_model_spec(model)

    return Loader()(huggingface.marian(problem), _tokenizer(problem))


def _bert(problem: Problem) -> Any:
    """Adds a pooler and a name for its positions, which the loader requires; transformers 5 has no other positions."""
    from ctranslate2.converters.transformers import BertLoader

    model = huggingface_single.loaded(problem, add_pooling_layer=True)
    model.config.position_embedding_type = "absolute"
    return BertLoader()(model, _tokenizer(problem))


def _gpt2(problem: Problem) -> Any:
    from ctranslate2.converters.transformers import GPT2Loader

    return GPT2Loader()(huggingface_single.loaded(problem), _tokenizer(problem))


def _tokenizer(problem: Problem) -> Any:
    """Uses the ids as tokens."""
    names = [str(token) for token in range(problem.config.target_vocabulary)]
    return SimpleNamespace(
        get_vocab=lambda: {name: token for token, name in enumerate(names)}, convert_ids_to_tokens=lambda token: names[token],
        bos_token=names[START], eos_token=names[END], unk_token=names[PADDING],
    )  # fmt: skip


def _read_hypotheses(found: Any) -> dict[str, np.ndarray]:
    return {"token_bn": np.array([[int(name) for name in result.hypotheses[0]] for result in found])}


def _read_sequences(found: Any) -> dict[str, np.ndarray]:
    return {"token_bn": np.array([result.sequences_ids[0] for result in found])}
