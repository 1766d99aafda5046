"""What `generate` says with a folder of a decoder since Llama is what the library says, in float64."""

import json
from pathlib import Path

import pytest
from decoder_folders import GEMMAS, KINDS, all_in_float64, drawn, loaded
from hugging_face_folders import made
from invoke import succeeded
from model_folders import byte_pairs, pieces
from tiers import every

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
torch = pytest.importorskip("torch")

PROMPT = "the quick brown fox"  # longer than the windows and the original lengths


@pytest.mark.parametrize("family", every(3, KINDS))
def test_a_folder_answers_as_in_the_library(tmp_path: Path, family: str) -> None:
    """Its tokenizer is of the family's kind: pieces, pieces of a normalised text, or bytes."""
    model, in_pieces = drawn(family, 0), family in {"llama", "mistral", "phi3", *GEMMAS}
    size, end = (pieces(tmp_path, family in GEMMAS), 1) if in_pieces else byte_pairs(tmp_path)
    settings = model.settings | {"vocab_size": size, "bos_token_id": None, "eos_token_id": end}
    made(model._replace(settings=settings)).save_pretrained(tmp_path)
    words = ("--backend", "numpy", "--dtype", "float64", "--max-new-tokens", 6, "--json", "--prompt", PROMPT)
    said = json.loads(succeeded("generate", tmp_path, *words).out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    given = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    with all_in_float64():
        (found,) = loaded(tmp_path, model.kind).generate(given, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert said["tokens"] == found[given.shape[1] :].tolist() and len(said["tokens"]) > 1
