"""Checkpoints of decoders since Llama in use: from texts to texts, pages and other files, and their memory."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoint_models import assert_same_bits
from decoder_folders import KINDS, sparse
from decoder_tokenizers import STYLES, decoder, saved_tokenizer
from invoke import invoke, succeeded
from kinds import conformance
from messages import mentions
from model_folders import NUMPY
from test_attention_page import held

from rosettaformer.files.checkpoints import view
from rosettaformer.use.inference.attention_page import LEVELS
from rosettaformer.use.inference.tokenizer import Pieces, Tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PROMPTS = ["the quick brown fox", "née Zoë 京", " the", "don't stop: 1,234.5 words!"]
# as in published folders: several end tokens, one of them unknown to this model; sampling options; run options
SAID = {
    "_from_model_config": True, "cache_implementation": "dynamic", "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9,
    "repetition_penalty": 1.3, "max_new_tokens": 12, "pad_token_id": 10**6, "transformers_version": "4.51.0",
}  # fmt: skip


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "gemma3_text",
        *map(conformance, ("mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "smollm3", "starcoder2", "gpt_neo", "opt", "glm")),
    ],
)
def test_texts_are_continued_as_transformers_continues_them(tmp_path: Path, family: str) -> None:
    """Single and in one left-padded batch, with the folder's generation settings, and for an empty text."""
    decoder(tmp_path, family, -list(KINDS).index(family) % 6)  # positions independent of the length
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ends = [tokenizer.eos_token_id, 9, 10**6]
    first = {} if model.config.bos_token_id is None else {"bos_token_id": model.config.bos_token_id}
    (tmp_path / "generation_config.json").write_text(json.dumps(SAID | {"eos_token_id": ends} | first))
    lines = "".join(f"{line}\n" for line in [*PROMPTS, ""])
    found = invoke("generate", tmp_path, *NUMPY, "--no-do-sample", "--json", stdin=lines)
    assert (found.code == 0) == bool(first or tokenizer("")["input_ids"])
    assert "got 1000000 " in found.err
    settings = transformers.GenerationConfig(max_new_tokens=12, repetition_penalty=1.3, eos_token_id=ends, pad_token_id=0)
    for row, prompt in zip(found.rows, [*PROMPTS, ""], strict=True):
        ids = tokenizer(prompt)["input_ids"] or list(first.values())
        if ids:
            given = torch.tensor([ids])
            wanted = model.generate(given, attention_mask=torch.ones_like(given), generation_config=settings)[0].tolist()
            assert row["tokens"] == wanted[len(ids) :]
        else:
            assert mentions(row["error"], "bos_token_id")
    (alone,) = invoke("generate", tmp_path, *NUMPY, "--no-do-sample", "--json", "--prompt", PROMPTS[2]).rows
    assert [alone[name] for name in ("tokens", "text")] == [found.rows[2][name] for name in ("tokens", "text")]


@pytest.mark.parametrize("style", STYLES)
def test_pieces_of_an_answer_are_its_text_also_where_bytes_are_tokens(tmp_path: Path, style: str) -> None:
    ids = saved_tokenizer(tmp_path, style)
    tokenizer, found = Tokenizer(tmp_path, None, {}), []
    raw = [ids[name] for name in ("<0xE4>", "<0xBA>", "<0xAC>", "<0x41>", "<0xFF>") if name in ids]
    answers = [*raw[:3], *tokenizer.prompt("a")], [*raw[3:4], *raw[:3], *raw[4:], *raw[3:4]]
    for answer in (tokenizer.prompt("née 😀 京 €! the"), *answers):
        prompt = tokenizer.prompt("the fox")
        pieces = Pieces(tokenizer, prompt)
        found.append([*map(pieces.add, answer)])
        shown = "".join(found[-1]) + pieces.end()
        assert tokenizer.text(prompt) + shown == tokenizer.text([*prompt, *answer])
    assert "" in found[0] and "\ufffd" not in "".join(found[0])  # a character appears with its last token


def test_a_folder_goes_through_a_canonical_file_with_its_tokenizer_and_templates(tmp_path: Path) -> None:
    folder, file, back = tmp_path / "a", tmp_path / "b.safetensors", tmp_path / "c"
    folder.mkdir()
    decoder(folder, "gemma3_text", 4)
    (folder / "additional_chat_templates").mkdir()
    for name in ("chat_template.jinja", "additional_chat_templates/rag.jinja"):
        (folder / name).write_text("{{ messages[0].content }}")
    succeeded("convert", folder, file)
    succeeded("convert", file, back, "--tokenizer", folder)
    for path in (path for path in folder.rglob("*") if path.suffix in (".json", ".jinja")):
        read = json.loads if path.suffix == ".json" else str
        assert read((back / path.relative_to(folder)).read_text()) == read(path.read_text())
    assert_same_bits(view(back).parameters, view(folder).parameters)
    shown = " ".join(succeeded("inspect", back).out.split())
    assert "family Gemma 3, Gemma3ForCausalLM" in shown and "format hugging-face" in shown
    words = ("--chat", "--prompt", "the fox", "--max-new-tokens", 5)
    assert succeeded("generate", folder, *NUMPY, *words).out == succeeded("generate", back, *NUMPY, *words).out


@pytest.mark.parametrize("family", ["gemma3_text", *map(conformance, ("mistral", "qwen3", "phi3"))])
def test_the_page_of_attention_shows_the_weights_of_transformers(tmp_path: Path, family: str) -> None:
    """With windows, and more tokens than the positions seen in training."""
    model, out = decoder(tmp_path, family, 0).double(), tmp_path / "page.html"
    succeeded("attention", tmp_path, *NUMPY, "--text", PROMPTS[0], "--out", out)
    (one,) = held(out.read_text(encoding="utf-8"))
    model.set_attn_implementation("eager")
    given = transformers.AutoTokenizer.from_pretrained(tmp_path)(PROMPTS[0], return_tensors="pt")["input_ids"]
    weights = torch.cat(model(given, output_attentions=True).attentions).detach().numpy()
    assert weights.shape[-1] > model.config.max_position_embeddings
    np.testing.assert_allclose(one["weights"], weights, rtol=0, atol=0.501 / LEVELS + 1e-6)  # the library rotates in float32


@pytest.mark.conformance
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_billion_parameters_are_in_memory_once(tmp_path: Path, dtype: str) -> None:
    """In PyTorch, from a sparse 2 GB file in bfloat16 to the first tokens; in float32 fewer parameters, for the same memory."""
    layers, wider = (16, 1) if dtype == "bfloat16" else (6, 2)
    size = wider * sparse(tmp_path, layers, vocabulary=len(saved_tokenizer(tmp_path, "llama")))
    code = (
        "import sys; import rosettaformer.use.inference.torch_model; from rosettaformer.cli import main\n"
        "def peak(): return next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "before = peak()\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(peak() - before)"
    )
    words = ("generate", tmp_path, "--backend", "torch", "--dtype", dtype, "--prompt", "the", "--max-new-tokens", "2")
    line = [sys.executable, "-c", code, *map(str, words)]
    peak = 1024 * int(subprocess.run(line, check=True, capture_output=True, text=True).stdout.split()[-1])
    assert size < peak < 1.25 * size, (peak, size)
