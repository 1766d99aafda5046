"""`rosettaformer translate`: a tiny trained model, from lines to lines."""

import json
from pathlib import Path

import numpy as np
import pytest
from backends import PORTS
from invoke import Outcome, invoke, refused, succeeded
from kinds import every
from model_folders import FOUR_NEEDS
from training_runs import MODEL, log

from rosettaformer.checkpoints import canonical
from rosettaformer.training import tasks
from rosettaformer.training.manifest import Manifest, read_tokens
from rosettaformer.training.tokens import START
from rosettaformer.training.translator import attention_weights, load_model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned to copy short strings of three letters."""
    folder = tmp_path_factory.mktemp("translate") / "run"
    data = ("--task", "copy", "--alphabet", "abc", "--length", 4, "--size", 12, "--held-out", 2, "--batch-tokens", 200, "--buckets", 1)
    recipe = ("--dropout", 0, "--smoothing", 0, "--warmup", 80)
    steps = ("--steps", 200, "--save-every", 25, "--average", 2, "--validate-every", 100)
    succeeded("train", "--out", folder, "--backend", "numpy", *data, *MODEL, *recipe, *steps)
    return folder


def translate(folder: Path, text: str | bytes, *arguments: object) -> Outcome:
    return succeeded("translate", folder, *arguments, stdin=text)


def refusal(folder: Path, text: str | bytes, *arguments: object) -> str:
    return refused("translate", folder, *arguments, stdin=text)


@pytest.fixture(scope="module")
def learned(run: Path) -> list[str]:
    """Four strings of the training set, one of every length, the longest first."""
    options = Manifest.read(run).task
    task = tasks.create(options.pop("name"), options)
    strings = {len(source): source for source, _ in task.data().epoch(0)}
    assert len(strings) == 4
    return [strings[length] for length in (4, 3, 2, 1)]


@pytest.mark.conformance
@pytest.mark.parametrize("arguments", [(), ("--beam", 3), ("--beam", 2, "--alpha", 0), ("--checkpoint", "average")])
def test_lines_in_lines_out(run: Path, learned: list[str], arguments: tuple[object, ...]) -> None:
    """Every line has its answer, in order; empty lines stay empty; any line end will do, and none at the end."""
    a, b, c, d = learned
    found = translate(run, f"{a}\n\n{b}\r\n   \n{c}\n{d}", *arguments)
    assert (found.out, found.err) == (f"{a}\n\n{b}\n\n{c}\n{d}\n", "")


def test_a_checkpoint_is_the_last_the_average_or_the_best(run: Path) -> None:
    last, average, best = (load_model(run, Manifest.read(run), name).parameters for name in ("last", "average", "best"))
    files = [run / "checkpoints" / "step-00000200" / "model.safetensors", run / "average.safetensors", run / "best.safetensors"]
    for found, file in zip((last, average, best), files, strict=True):
        for name, value in canonical.load(file).parameters.items():
            np.testing.assert_array_equal(found[name], value)
    assert any((last[name] != average[name]).any() for name in last)


def test_nothing_in_nothing_out(run: Path) -> None:
    for text in ("", "\n"):
        assert translate(run, text) == Outcome(0, text, "")


@pytest.mark.conformance
def test_a_file_of_many_lines_keeps_its_order(run: Path, learned: list[str], tmp_path: Path) -> None:
    lines = learned * 150  # more than are translated at a time
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    assert translate(run, "", tmp_path / "lines.txt").out.splitlines() == lines


def test_json(run: Path, learned: list[str]) -> None:
    rows = translate(run, f"{learned[0]}\n\nñ\n", "--json").rows
    assert [(row["line"], row["source"]) for row in rows] == [(1, learned[0]), (2, ""), (3, "ñ")]
    assert rows[0]["translation"] == learned[0] and -1 < rows[0]["score"] < 0
    assert rows[1]["translation"] == "" and rows[1]["score"] == 0


def test_a_line_longer_than_training_saw_is_translated_in_pieces(run: Path, learned: list[str]) -> None:
    assert Manifest.read(run).longest == 5
    found = translate(run, "a\n" + learned[0] * 150 + "\n")
    assert found.out.splitlines()[1] == " ".join([learned[0]] * 150) and found.out.count("\n") == 2
    assert "line 2 is translated in 150 pieces, since training saw no source of more than 5 tokens" in found.err
    assert "line 1 is translated in 2 pieces" in translate(run, "ca abc\n").err  # cut between words; the second begins with its space


def test_a_bad_line_costs_its_own_row(run: Path, learned: list[str]) -> None:
    """The others are translated as without it."""
    good = translate(run, f"{learned[0]}\n{learned[1]}\n", "--json").rows
    lines = b"\n".join([learned[0].encode(), b"\xff", b"x" * 200_000, learned[1].encode()])
    found = invoke("translate", run, "--json", stdin=lines)
    rows = found.rows
    assert [rows[0], rows[3] | {"line": 2}] == good
    errors = [row["error"] for row in rows[1:3]]
    assert "must be UTF-8; got the byte 0xff" in errors[0] and "must be at most 100000 bytes long" in errors[1]
    assert found.code == 2 and found.err.startswith("Error: 2 of 4 lines have no answer:\n  line 2: must be UTF-8")
    assert invoke("translate", run, stdin=lines).out == f"{good[0]['translation']}\n\n\n{good[1]['translation']}\n"


def test_attention_as_text(run: Path, learned: list[str]) -> None:
    lines = translate(run, f"{learned[1]}\n\n", "--attention", "text").out.splitlines()
    assert lines[0] == learned[1] and lines[-1] == ""
    assert [line.split()[1] for line in lines[1:5]] == [*learned[1], "(end)"]
    assert [line.split()[0] for line in lines[6:10]] == [*learned[1], "(end)"]


def test_attention_as_a_picture_of_one_line(run: Path, learned: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "attention.png"
    assert translate(run, f"{learned[1]}\n", "--attention", picture).out == f"{learned[1]}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    errors = refusal(run, "bca\na\n", "--attention", picture)
    assert "a picture shows one line" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["attention.png"]


def test_the_weights_of_attention_add_up_to_one_and_say_what_is_copied(run: Path) -> None:
    manifest = Manifest.read(run)
    tokens, model = read_tokens(run, manifest), load_model(run, manifest, "last")
    (source,) = tokens.source(["bca"])
    weights_ts = attention_weights(model, source, [START, *source[:-1]])
    assert weights_ts.shape == (4, 4)
    np.testing.assert_allclose(weights_ts.sum(axis=1), 1, rtol=1e-12)


@pytest.mark.conformance
@pytest.mark.parametrize("backend", PORTS)
def test_int8_translates_what_was_learned_as_well(run: Path, learned: list[str], backend: str) -> None:
    pytest.importorskip(FOUR_NEEDS[backend])
    for arguments in ((), ("--beam", 2)):
        assert translate(run, "\n".join(learned), "--backend", backend, "--dtype", "int8", *arguments).out.splitlines() == learned


def test_scores_are_those_at_the_end_of_training(run: Path) -> None:
    """Of the last parameters and of the average."""
    for row in (rows := log(run, "test")):
        assert translate(run, "", "--scores", "--checkpoint", row["checkpoint"]).out == f"exact_match {row['exact_match']:.4g}\n"
    assert rows


def test_what_int8_and_scores_do_not_go_with_is_refused(run: Path) -> None:
    wanted = "dtype int8 needs backend torch, tf or jax, and device cpu; got backend numpy, device cpu"
    assert wanted in refusal(run, "a\n", "--dtype", "int8")
    assert "--scores prints scores alone" in refusal(run, "", "--scores", "--json")


@pytest.mark.parametrize("backend", every(3, PORTS))
def test_every_backend_translates_alike(run: Path, learned: list[str], backend: str) -> None:
    pytest.importorskip(FOUR_NEEDS[backend])
    for arguments in ((), ("--beam", 2)):
        assert translate(run, "\n".join(learned), "--backend", backend, *arguments).out.splitlines() == learned


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--attention", "picture.txt"), "--attention must be text, or a file that ends in .png, .svg or .pdf; got 'picture.txt'"),
        (("--attention", "nowhere/a.png"), "the folder nowhere does not exist"),
        (("--attention", "text", "--json"), "choose one"),
        (("--beam", "0"), "--beam"),
        (("--alpha", "-1"), "--alpha"),
        (("--device", "cuda"), "device must be cpu"),
        (("no_such_file.txt",), "no_such_file.txt"),
    ],
)
def test_wrong_usage(run: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in refusal(run, "a\n", *arguments)


def test_folders_without_a_model(run: Path, tmp_path: Path) -> None:
    assert f"{tmp_path} holds no run" in refusal(tmp_path, "a\n")
    for name in ("run.json", "tokens.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    for name in ("last", "average", "best"):
        assert f"has no checkpoint {name!r} yet" in refusal(tmp_path, "a\n", "--checkpoint", name)
    model = canonical.load(run / "average.safetensors")
    canonical.save(tmp_path / "average.safetensors", model.config.replace(epsilon=1e-3), model.parameters)
    errors = refusal(tmp_path, "a\n", "--checkpoint", "average")
    assert "has another config than the run" in errors


@pytest.mark.conformance
def test_the_other_commands_read_a_runs_checkpoint(run: Path) -> None:
    file = run / "checkpoints" / "step-00000200" / "model.safetensors"
    assert json.loads(succeeded("inspect", file, "--json").out)["format"] == "canonical"
    assert "PASSED" in succeeded("check", "torch", "--checkpoint", file, "--dtype", "float64").out
