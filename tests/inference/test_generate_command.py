"""`rosettaformer generate`: a folder with its tokenizer, from texts to texts."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from invoke import heed_interrupts, invoke, refused, succeeded
from messages import mentions
from model_folders import NUMPY, gpt2

from rosettaformer.use.inference.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Returns a folder, and the transformers model saved in it."""
    folder = tmp_path_factory.mktemp("generate")
    return folder, gpt2(folder, 5)


def generate(folder: Path, *arguments: object, stdin: str = "") -> str:
    found = succeeded("generate", folder, *NUMPY, *arguments, stdin=stdin)
    assert found.err == ""
    return found.out


def continued(model: tuple[Path, Any], prompt: str, **options: Any) -> str:
    """Returns the text that transformers generates, with its prompt."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model[0])
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    found = model[1].generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
    return tokenizer.decode(found[0], skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "max_new_tokens": 9}, {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2}])
def test_a_prompt_is_continued_as_transformers_continues_it(model: tuple[Path, Any], options: dict[str, Any]) -> None:
    words = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    for prompt in ("the quick", "Zoë 😀"):
        assert generate(model[0], "--prompt", prompt, *words) == continued(model, prompt, **options) + "\n"


@pytest.mark.parametrize("beams", [1, 3])
def test_an_answer_ends_where_that_of_transformers_completes_a_stop_string(model: tuple[Path, Any], beams: int) -> None:
    """Stop strings of one to four characters that cut tokens anywhere, and one that is absent from the answer."""
    import transformers

    tokenizer, ended = transformers.AutoTokenizer.from_pretrained(model[0]), 0
    for prompt in ("the quick", "Zoë 😀"):
        options = {"max_new_tokens": 14, "num_beams": beams, "early_stopping": True}
        words = ("--max-new-tokens", 14, "--num-beams", beams, *(("--set", "early_stopping=true") if beams > 1 else ()))
        whole = continued(model, prompt, **options)
        answer = whole[len(prompt) :]
        for start in range(0, len(answer) - 4, 3):
            stops = [answer[start : start + 1 + start % 4], "absent"]
            if "\ufffd" in stops[0]:
                continue
            wanted = continued(model, prompt, **options, stop_strings=stops, tokenizer=tokenizer)
            found = generate(model[0], "--prompt", prompt, *words, "--set", f"stop_strings={json.dumps(stops)}")
            assert found == wanted + "\n", stops
            ended += wanted != whole
    assert ended > 1


def test_several_answers_are_numbered_and_lines_are_prompts(model: tuple[Path, Any], tmp_path: Path) -> None:
    lines = "the fox\nover\nété\n"
    text = generate(model[0], "--batch-size", 2, stdin=lines)
    assert re.findall(r"^\[(\d)\] (the fox|over|été)", text, re.MULTILINE) == [("1", "the fox"), ("2", "over"), ("3", "été")]
    (tmp_path / "lines.txt").write_text(lines)
    assert generate(model[0], tmp_path / "lines.txt", "--batch-size", 3) == text
    assert mentions(refused("generate", model[0], tmp_path / "lines.txt", "--prompt", "b"), "--prompt … lines.txt")
    several = generate(model[0], "--prompt", "a", "--do-sample", "--set", "num_return_sequences=3", "--seed", 4)
    assert [mark for mark in ("[1.1] a", "[1.2] a", "[1.3] a") if mark not in several] == []


def test_json_holds_texts_tokens_and_scores(model: tuple[Path, Any]) -> None:
    arguments = ("--prompt", "the", "--num-beams", 3, "--set", "num_return_sequences=3", "--json")
    rows = [json.loads(line) for line in generate(model[0], *arguments).splitlines()]
    assert [(row["line"], row["answer"], row["prompt"]) for row in rows] == [(1, 1, "the"), (1, 2, "the"), (1, 3, "the")]
    assert rows[0]["score"] >= rows[1]["score"] >= rows[2]["score"]
    tokenizer = Tokenizer(model[0], model[1].config.vocab_size, {"model_type": "gpt2"})
    for row in rows:
        whole = tokenizer.text([*tokenizer.prompt("the"), *row["tokens"]])
        assert "the" + row["text"] == whole


def test_tokens_are_printed_as_they_come(model: tuple[Path, Any]) -> None:
    """The first token is readable before the last is computed; Ctrl-C then exits with 130 and no traceback."""
    program = (
        "import os, signal, sys; from rosettaformer.use.inference import numpy_model as module; from rosettaformer.cli import main\n"
        "read, calls = module.BackendModel.read, []\n"
        "def interrupted(*arguments):\n"
        "    calls.append(arguments)\n"
        "    if len(calls) > 5:\n"
        "        os.write(1, b'|')\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    return read(*arguments)\n"
        "module.BackendModel.read = interrupted\n"
        "main(sys.argv[1:])"
    )
    line = (sys.executable, "-c", program, "generate", model[0], *NUMPY, "--prompt", "the quick")
    ended = subprocess.run(line, capture_output=True, preexec_fn=heed_interrupts, env=os.environ | {"PYTHONUNBUFFERED": ""})
    begun, mark, _ = ended.stdout.partition(b"|")
    assert mark and len(begun) > len(b"the quick") and continued(model, "the quick").encode().startswith(begun)
    assert (ended.returncode, ended.stderr.strip()) == (130, b"")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompt", "a " * 70, "--prompt", "b", "--prompt", "c " * 80), "prompt 3 … 64"),
        (("--prompt", "a", "--top-k", 4), "top_k has no effect without --do-sample"),
        (("--prompt", "a", "--set", "length_penalty=2"), "length_penalty … --num-beams"),
        (("--prompt", "a", "--set", 'bad_words_ids=[[3,"x"]]'), "bad_words_ids must be"),
        (("--prompt", "a", "--set", "eos_token_id=1000"), "eos_token_id … 0 .. 299; got 1000"),
        (("--prompt", "a", "--set", "early_stopping=nevr"), "nevr"),
        (("--prompt", "a", "--batch-size", 10**9), "1000000000 is not in the range 1<=x<=4096"),
    ],
)
def test_mistakes_are_one_message(model: tuple[Path, Any], arguments: tuple[object, ...], message: str) -> None:
    errors = refused("generate", model[0], *NUMPY, *arguments)
    assert mentions(errors, message)


def test_a_bad_prompt_costs_its_own_row(model: tuple[Path, Any]) -> None:
    """The others are unaffected, and an empty prompt starts from the BOS token."""
    import torch

    long = "a " * 70
    found = invoke("generate", model[0], *NUMPY, "--json", stdin=f"the quick\n\n{long}\nthe dog\n")
    rows = found.rows
    assert [row["line"] for row in rows] == [1, 2, 3, 4]
    for row, prompt in ((rows[0], "the quick"), (rows[3], "the dog")):
        assert prompt + row["text"] == continued(model, prompt)
    start = torch.tensor([[model[1].config.bos_token_id]])
    for ids in (model[1].generate(pad_token_id=0), model[1].generate(start, attention_mask=torch.ones_like(start), pad_token_id=0)):
        assert rows[1]["tokens"] == ids[0, 1:].tolist()
    assert rows[2] == {"version": 1, "line": 3, "prompt": long, "error": rows[2]["error"]} and mentions(rows[2]["error"], "prompt … 64")
    assert found.code == 2 and mentions(found.err, "Error: 1 of 4 … prompt 3: … 64")
    words = ("--prompt", "the quick", "--prompt", long, "--prompt", "the dog")
    shown = invoke("generate", model[0], *NUMPY, *words).out
    assert shown.startswith("[1] the quick") and mentions(shown, "\n[2] error: … 64 … \n[3] the dog")


def test_what_a_folder_says_of_generation(model: tuple[Path, Any], tmp_path: Path) -> None:
    """No first token, an end that is no token, ignored settings, and two contradictory entries."""
    folder = tmp_path / "model"
    shutil.copytree(model[0], folder)
    file = folder / "generation_config.json"
    said = json.loads(file.read_text())
    for entries, words, message in (
        ({"bos_token_id": None}, ("--prompt", ""), "prompt 1 … bos"),
        ({"max_time": 5.0}, ("--prompt", "a"), "--ignore … max_time=5.0"),
        ({"do_sample": True, "num_beams": 3}, ("--prompt", "a"), "do_sample … num_beams=1 … got 3 … --no-do-sample"),
    ):
        file.write_text(json.dumps(said | entries))
        assert mentions(refused("generate", folder, *NUMPY, *words), message)
    assert generate(folder, "--prompt", "a", "--no-do-sample") == continued(model, "a", num_beams=3) + "\n"
    file.write_text(json.dumps(said | {"max_time": 5.0, "trust_remote_code": False, "eos_token_id": [99999, said["eos_token_id"]]}))
    found = succeeded("generate", folder, *NUMPY, "--prompt", "the quick", "--ignore", "max_time")
    assert found.out == continued(model, "the quick") + "\n"
    assert found.err.startswith("note: ") and mentions(found.err, f"0 .. 299; got 99999 … {folder}")


def test_everything_that_is_wrong_with_a_folder_is_said_at_once(model: tuple[Path, Any], tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    shutil.copytree(model[0], folder)
    (folder / "tokenizer.json").unlink()
    settings = json.loads((folder / "generation_config.json").read_text()) | {"token_healing": True}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    errors = refused("generate", folder, *NUMPY, "--prompt", "a")
    assert f"{folder} has no tokenizer" in errors
    assert mentions(errors, "generation_config.json … --ignore … token_healing=True")
    (folder / "generation_config.json").write_text("[1]")
    assert "generation_config.json must be a JSON object; got list" in refused("generate", folder, *NUMPY, "--prompt", "a")
