"""`rosettaformer report`: its values equal those of transformers and of torch's autograd; its page and its files."""

import base64
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pytest
from browser import names_nothing_outside, opened, wide
from checkpoint_models import CONFIG, random_parameters
from invoke import invoke, refused
from messages import mentions
from model_folders import bert, edit, gpt2, modern
from training_runs import log, train

from reference_numpy import TransformerConfig, parameters
from rosettaformer.common.processes import cores, thread_share
from rosettaformer.comparison.engine.beside import Beside
from rosettaformer.comparison.engine.speed import Speed, Timing
from rosettaformer.comparison.numbers import size
from rosettaformer.comparison.one_model import making
from rosettaformer.comparison.one_model.layer_errors import Attention, component_error
from rosettaformer.comparison.one_model.making import Options, Report
from rosettaformer.comparison.one_model.predictions import Predictions, predict
from rosettaformer.comparison.one_model.subject import open_subject
from rosettaformer.comparison.one_model.trainee import PASSES, modes
from rosettaformer.comparison.output.page import verdict
from rosettaformer.files.checkpoints import canonical, load
from rosettaformer.judge.case import DTYPES, Case
from rosettaformer.judge.expectation import components, tolerance

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

ALL = {"numpy", "torch", "tf", "jax", "transformers"}
TEXT, PAIR = "the quick brown fox jumps over the lazy dog", "née Zoë went to 北京"


def report(checkpoint: Path, *options: object, code: int = 0, folder: Path) -> tuple[str, dict[str, Any]]:
    out, numbers = folder / "report.html", folder / "report.json"
    outcome = invoke("report", "--checkpoint", checkpoint, "--out", out, "--json", numbers, *options)
    assert outcome.code == code, outcome
    assert str(out) in outcome.out.splitlines()[-1]
    return out.read_text(encoding="utf-8"), json.loads(numbers.read_text())


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A BERT in four implementations and in transformers: the model, the folder, the page and the values."""
    folder = tmp_path_factory.mktemp("encoder")
    model = bert(folder)
    only = ("--only", "matrix,layers,attention", "--dtype", "float32,bfloat16", "--figures", folder / "figures")
    return model, folder, *report(folder, "--text", TEXT, "--text", PAIR, *only, folder=folder)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A GPT-2 in NumPy and PyTorch, in training."""
    folder = tmp_path_factory.mktemp("decoder")
    model = gpt2(folder)
    choices = ("--only", "training", "--backend", "numpy,torch", "--steps", "2", "--text", TEXT)
    return model, folder, *report(folder, *choices, folder=folder)


def rounded(model: Any) -> Any:
    """Returns the model in float64 with weights rounded to float32."""
    return model.float().double()


def theirs(model: Any, numbers: dict[str, Any]) -> Any:
    inputs = {name: torch.tensor(numbers["inputs"][own]) for name, own in (("input_ids", "source"), ("token_type_ids", "segment_bs"))}
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        return rounded(model)(**inputs, output_attentions=True, output_hidden_states=True)


@pytest.mark.conformance
def test_attention_and_layers_are_those_of_transformers_and_their_errors_plain_numpys(encoder: Any) -> None:
    model, folder, page, numbers = encoder
    answer = theirs(model, numbers)
    wanted = torch.stack(answer.attentions)[:, 0].numpy()
    (one,) = numbers["attention"]
    assert one["name"] == "encoder self-attention"
    np.testing.assert_allclose(one["reference"], wanted, rtol=0, atol=1e-12)
    (held,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    (shown,) = json.loads(held)["attention"]
    high, low = np.frombuffer(zlib.decompress(base64.b64decode(shown["weights"])), np.uint8).reshape(2, -1)
    np.testing.assert_allclose((256 * high.astype(int) + low) / 65535, wanted.ravel(), rtol=0, atol=0.5001 / 65535)
    assert list(shown["differences"]) == sorted(one["differences"])
    for name, packed in shown["differences"].items():
        levels = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.int8).reshape(wanted.shape) / 127
        scales = np.array(shown["scales"][name])[:, :, None, None]
        assert (np.abs(levels * scales - np.array(one["differences"][name])) <= 0.5001 / 127 * scales).all()
        largest = np.abs(one["differences"][name]).max(axis=(2, 3)) / np.array(one["noise"])[:, None]
        np.testing.assert_allclose(one["largest"][name], largest, rtol=1e-12)
        assert 0 < largest.max() < 4
    hidden = torch.stack(answer.hidden_states)[:, 0].numpy()
    rows = [row for row in numbers["layers"] if row["dtype"] == "float32"]
    assert [row["name"] for row in rows] == ["encoder embedding", "encoder layer 0", "encoder layer 1"]
    np.testing.assert_allclose([row["largest"] for row in rows], np.abs(hidden).max(axis=(1, 2)), rtol=1e-12)
    values = {name: value.astype(np.float32) for name, value in load(folder).parameters.items()}
    inputs = {name: np.array(value) for name, value in numbers["inputs"].items()}
    found = flat.states(parameters.nest(values), TransformerConfig.from_dict(numbers["config"]), **inputs)["encoder"]["hidden_lbtd"][:, 0]
    errors = np.abs(found - hidden).max(axis=(1, 2))
    np.testing.assert_allclose([row["found"]["numpy"]["error"] for row in rows], errors, rtol=1e-6)
    assert all(set(row["found"]) == ALL for row in rows)
    assert all(0 < one["excess"] < 1 for row in rows for one in row["found"].values())
    half = [row for row in numbers["layers"] if row["dtype"] == "bfloat16"]
    assert min(row["noise"] / row["largest"] for row in half) > 1000 * max(row["noise"] / row["largest"] for row in rows)


@pytest.mark.conformance
def test_the_matrix_is_that_of_the_check_on_one_page_with_figures_that_names_nothing_outside(encoder: Any) -> None:
    _, _, page, numbers = encoder
    matrix = numbers["matrix"]
    assert (matrix["verdict"], matrix["failed"]) == ("all conform", 0)
    assert {(row["port"], row["dtype"]) for row in matrix["results"]} == {
        (port, dtype) for port in ALL for dtype in ("float32", "bfloat16")
    }
    assert {row["component"] for row in matrix["results"]} == {"pool", "classify", "states"}
    assert numbers["conforms"] and mentions(numbers["verdict"], "NumPy … JAX … transformers … encoder")
    compared = {(row["port"], row["component"]) for row in matrix["results"] if row["status"] == "pass"}
    assert {component for port, component in compared if port == "transformers"} == {"classify", "states"}
    assert numbers["verdict"] in page and mentions(page, f"{matrix['compared']} … 0")
    _, folder, _, numbers = encoder
    files = {path.name for path in (folder / "figures").iterdir()}
    names = {"matrix", "error-float32", "error-bfloat16", "encoder-self-attention-layer-00", "encoder-self-attention-layer-01"}
    assert files == {f"{name}{suffix}" for name in names for suffix in (".png", ".svg")} | {"report.json"}
    for name in names:
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / "figures" / f"{name}.svg").read_text()
    assert json.loads((folder / "figures" / "report.json").read_text()) == numbers
    page = encoder[2]
    assert names_nothing_outside(re.sub(r'href="#.*?"', "", page))
    assert len(page) < 1e6


@pytest.mark.conformance
def test_loss_and_gradient_norm_are_those_of_autograd(decoder: Any) -> None:
    model, _, page, numbers = decoder
    ids = torch.tensor(numbers["inputs"]["target"])
    loss = torch.nn.functional.cross_entropy(rounded(model)(ids).logits[0, :-1], ids[0, 1:])  # transformers' own loss is float32
    loss.backward()
    loss = loss.detach()
    norm = float(torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm())
    training = numbers["training"]
    first = {name: one[0] for name, one in training["reference"].items()}
    np.testing.assert_allclose([first["loss"]["value"], first["gradient_norm"]["value"]], [float(loss), norm], rtol=1e-12)
    for name in ("numpy", "torch"):
        found = training["found"][name]
        np.testing.assert_allclose([found["loss"][0], found["gradient_norm"][0]], [float(loss), norm], rtol=1e-5)
        away = abs(found["loss"][1] - training["reference"]["loss"][1]["value"]) / training["reference"]["loss"][1]["noise"]
        assert found["units"][1][0] == pytest.approx(away)
        assert np.max(found["units"]) < 4
    assert training["reference"]["loss"][1]["value"] < float(loss)
    assert "20 float32 runs" in page


def test_a_canonical_file_reads_random_tokens_of_a_seed_and_is_timed(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    canonical.save(file, CONFIG, random_parameters(CONFIG))
    few = ("--backend", "numpy", "--quick", "--steps", "1", "--seed", "3")
    page, numbers = report(file, *few, "--only", "attention,speed,training", folder=tmp_path)
    assert mentions(page, "24 … seed 3")
    assert [one["name"] for one in numbers["attention"]] == ["encoder self-attention", "decoder self-attention", "decoder cross-attention"]
    rng = np.random.default_rng(3)
    assert numbers["inputs"]["source"] == rng.integers(0, CONFIG.source_vocabulary, (1, 24)).tolist()
    rows = numbers["speed"]["rows"]
    assert [(row["what"], row["name"], row["status"], len(row["samples_ms"])) for row in rows] == [
        ("forward pass", "numpy", "timed", 3), ("training step", "numpy", "timed", 3),
    ]  # fmt: skip
    assert "Gradient agreement" in page
    assert all(row["median_ms"] == np.median(row["samples_ms"]) and f"{row['median_ms']:.3g}" for row in rows)
    assert numbers["speed"]["peaks"]["numpy"] > numbers["speed"]["alone"]["numpy"] > 10
    again = json.loads((tmp_path / "report.json").read_text())
    assert again["environment"]["SHA-256 of model.safetensors"] == numbers["environment"]["SHA-256 of model.safetensors"]


def test_a_framework_that_is_missing_is_said_and_never_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "hidden" / "jax"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'jax'\", name='jax')\n")
    monkeypatch.syspath_prepend(hidden.parent)
    file = tmp_path / "model.safetensors"
    canonical.save(file, CONFIG, random_parameters(CONFIG))
    few = ("--only", "layers,matrix", "--dtype", "float32", "--backend", "numpy,jax,transformers")
    page, numbers = report(file, *few, code=3, folder=tmp_path)
    assert "pip install" in numbers["missing"].pop("jax")
    assert [*numbers["missing"]] == ["transformers"]
    assert "All 2 outputs conform in float32: transformer of NumPy" in page and 'class="matrix"' not in page
    assert numbers["conforms"] and mentions(numbers["verdict"], "model.safetensors … JAX")
    assert all(set(row["found"]) == {"numpy"} for row in numbers["layers"])
    assert {row["port"] for row in numbers["matrix"]["results"]} == {"numpy"}
    assert 'class="chip accepted">missing' in page


def test_bad_input_is_one_message_before_any_work(tmp_path: Path) -> None:
    file, out = tmp_path / "model.safetensors", tmp_path / "report.html"
    canonical.save(file, CONFIG, random_parameters(CONFIG))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "notes.txt").write_text("mine")
    given = ("report", "--checkpoint", file, "--out", out)
    assert "does not exist" in refused("report", "--checkpoint", tmp_path / "no", "--out", out)
    assert "--text" in refused(*given, "--text", "a text")
    assert "got 3" in refused(*given, *("--text", "a text") * 3)
    assert "section" in refused(*given, "--only", "matrx") and "matrix" in refused(*given, "--only", "matrx")
    assert mentions(refused(*given, "--quick", "--dtype", "float64"), "--quick … float32")
    assert mentions(refused(*given, "--only", "training", "--steps", "0"), "--only training … --steps … 0")
    assert "the folder" in refused("report", "--checkpoint", file, "--out", tmp_path / "no" / "report.html")
    assert str(tmp_path / "own") in refused(*given, "--figures", tmp_path / "own")
    assert (tmp_path / "own" / "notes.txt").read_text() == "mine"
    assert not out.exists()


@pytest.mark.conformance
def test_a_run_shows_what_it_recorded(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, "--steps", "6", "--loop", "validate_every=3")
    few = ("--backend", "numpy", "--dtype", "float32", "--only", "training,attention", "--steps", "1", "--text", "abcd")
    page, numbers = report(run, *few, "--figures", tmp_path / "figures", folder=tmp_path)
    assert "reference" in page and "recorded" in page
    recorded = numbers["recorded"]
    assert recorded["training"] == pytest.approx([entry["loss"] for entry in log(run)])
    assert [loss for loss in recorded["validation"] if loss] == pytest.approx([entry["loss"] for entry in log(run, "validation")])
    assert (tmp_path / "figures" / "recorded.png").is_file()
    refusal = refused("report", "--checkpoint", run, "--ignore", "pooler", "--out", tmp_path / "report.html")
    assert "run" in refusal


def test_what_is_interrupted_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("rosettaformer.comparison.output.figures.write", interrupted)
    file, out, figures = tmp_path / "model.safetensors", tmp_path / "report.html", tmp_path / "figures"
    canonical.save(file, CONFIG, random_parameters(CONFIG))
    out.write_text("old")
    choices = ("--backend", "numpy", "--only", "attention", "--figures", figures, "--out", out)
    assert invoke("report", "--checkpoint", file, *choices).code == 130
    assert out.read_text() == "old" and {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "report.html"}


def test_a_long_text_is_cut_and_that_is_said(tmp_path: Path) -> None:
    gpt2(tmp_path, n_positions=512)
    subject = open_subject(tmp_path, "the lazy dog " * 60)
    assert subject.inputs["target"].shape == (1, 64) and len(subject.tokens["target"]) == 64
    assert re.search(r"64 of \d{3} target", subject.notes[0])


class Answering:
    """A process that returns altered results of the reference."""

    greeting = ("ready", {"dtypes": DTYPES, "framework": ""})

    def __init__(self, alter: Any) -> None:
        self._alter = alter

    def ask(self, case: Case, limit: float) -> Any:
        return "outputs", {"output": self._alter(components.answer(case)["output"].copy())}


def swapped(logits_btv: np.ndarray) -> np.ndarray:
    """Swaps the two likeliest tokens at position 5."""
    first, second = np.argsort(-logits_btv[0, 5])[:2]
    logits_btv[0, 5, [first, second]] = logits_btv[0, 5, [second, first]]
    return logits_btv


def said(folder: Path, values: dict[str, np.ndarray], alter: Any) -> tuple[Predictions, dict[str, list[str]]]:
    """Returns the report on a model whose logits one implementation alters."""
    canonical.save(folder / "model.safetensors", CONFIG, values)
    beside = Beside({"numpy": Answering(lambda logits: logits), "torch": Answering(alter)}, 1.0)  # type: ignore[dict-item]
    found = predict(open_subject(folder / "model.safetensors"), beside, "float32")
    assert found
    return found, beside.problems


def test_a_choice_that_flips_is_seen_and_whether_rounding_explains_it(tmp_path: Path) -> None:
    found, problems = said(tmp_path, random_parameters(CONFIG), swapped)
    (flip,) = found.flips
    assert (flip.name, flip.place[:14], flip.explained) == ("torch", "after token 5,", False)
    assert flip.margin == pytest.approx(flip.error, rel=1e-4) and flip.reference != flip.found
    assert [*problems] == ["torch"] and "float32" in problems["torch"][0]
    assert mentions(found.sentence, "1 of 48 … 1 of them")
    found, problems = said(tmp_path, random_parameters(CONFIG), lambda logits: logits)
    assert (found.flips, found.close, problems) == ([], 0, {})
    assert mentions(found.sentence, "24") and (found.choices, len(found.found)) == (24, 2)
    assert 0 < found.error < 1e-4 < found.margin
    twins = random_parameters(CONFIG)
    twins["logits.kernel"][..., 1:] = twins["logits.kernel"][..., :1]  # all tokens are equally likely
    twins["logits.bias"][:] = 0

    def another(logits_btv: np.ndarray) -> np.ndarray:
        logits_btv[0, 5, 7] = np.nextafter(logits_btv[0, 5, 7], np.float32(np.inf))
        return logits_btv

    found, problems = said(tmp_path, twins, another)
    flips = [flip for flip in found.flips if flip.name == "torch"]  # products of equal kernels may also differ by processor
    assert any(flip.place.startswith("after token 5,") for flip in flips) and all(flip.explained for flip in flips) and not problems
    assert found.close == 24 and "rounding" in found.sentence


def test_a_part_that_is_computed_once_counts_for_every_position_and_one_of_another_shape_has_no_number() -> None:
    row = np.random.default_rng(0).standard_normal((1, 1, 8)).astype(np.float32)
    expected = tolerance.expectation(np.repeat(row, 6, 1).astype(np.float64), [np.repeat(row, 6, 1)])
    got = {"torch": row, "tf": np.repeat(row, 6, 1), "jax": row[0], "numpy": row + 1}
    found = component_error("segments", "segments", 0, "float32", expected, got)
    assert {name: one.excess <= 1 for name, one in found.found.items()} == {"torch": True, "tf": True, "numpy": False}
    assert [*found.said] == ["jax"]


def test_a_busy_machine_is_said_and_threads_are_as_the_user_set_them(monkeypatch: pytest.MonkeyPatch) -> None:
    steady, unsteady = (
        Timing("forward pass", "numpy", "eager", samples_ms=[10, 11, 12]),
        Timing("x", "torch", "eager", samples_ms=[1, 2, 3]),
    )
    assert Speed(3, 1, load=cores(), timings=[steady]).warnings == []
    (load,) = Speed(3, 1, load=cores() + 0.5, timings=[steady]).warnings
    (spread,) = Speed(3, 1, timings=[steady, unsteady]).warnings
    assert f"on {cores()} cores" in load and "1.5 and 2.5 ms" in spread
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert (thread_share(), thread_share(10**6)) == (cores(), 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1,1")
    assert thread_share() == 1


def test_a_quick_report_compiles_what_jax_runs_alone() -> None:
    quick = {name: modes(PASSES, name, False) for name in PASSES}
    assert quick == dict.fromkeys(PASSES, ("eager",)) | {"jax": ("compiled",)} and PASSES.keys() == ALL
    assert modes(PASSES, "torch", True) == ("eager", "compiled")


@pytest.mark.parametrize(
    ("mib", "text"),
    [(0.0, "0 bytes"), (0.00390625, "4 KiB"), (0.98, "1,004 KiB"), (1.0, "1 MiB"), (350.2, "350 MiB"), (2048.0, "2 GiB"), (None, "–")],
)
def test_sizes_are_in_the_unit_that_suits_them(mib: float | None, text: str) -> None:
    assert size(mib) == text


def test_a_head_is_even_where_every_query_weighs_its_keys_alike() -> None:
    causal, other = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None], np.eye(4) * 0.9 + 0.025
    one = Attention("decoder self-attention", "float32", "abcd", "abcd", np.stack([causal, other])[None], {}, [1e-7])
    assert (one.even(0, 0), one.even(0, 1)) == (True, False)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A Llama with everything that --quick makes, in NumPy, PyTorch and transformers: the model, the folder, the page and the values."""
    folder = tmp_path_factory.mktemp("llama")
    model = modern(folder).float()
    model.save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        return model, folder, *report(folder, "--text", TEXT, "--quick", "--backend", "numpy,torch,transformers", folder=folder)


@pytest.mark.conformance
def test_a_quick_report_about_a_llama_has_transformers_in_every_section_that_it_can_answer(llama: Any) -> None:
    model, _, page, numbers = llama
    asked = {"numpy", "torch", "transformers"}
    assert numbers["conforms"] and mentions(numbers["verdict"], "transformers … llama")
    (place,) = numbers["predictions"]["places"]
    with torch.inference_mode():
        logits_v = model(torch.tensor(numbers["inputs"]["target"])).logits[0, -1].double()
    likeliest = logits_v.softmax(0).topk(5)
    for name in asked:
        np.testing.assert_allclose([one["found"][name] for one in place["candidates"]], likeliest.values, rtol=1e-4)
        assert place["errors"][name] < 1e-4 < place["margin"]
    assert place["margin"] == pytest.approx(float(logits_v.topk(2).values.diff().abs()), rel=1e-3)
    assert numbers["predictions"]["flips"] == [] and numbers["predictions"]["sentence"] in page
    assert all({*row["found"]} == asked and row["found"]["transformers"]["excess"] < 1 for row in numbers["layers"])
    assert {*numbers["attention"][0]["differences"]} == asked
    compared = {row["component"] for row in numbers["matrix"]["results"] if row["port"] == "transformers" and row["status"] == "pass"}
    assert compared == {"transformer", "states"} and "outputs conform in float32" in page
    assert {*numbers["training"]["found"]} == {"numpy", "torch"}
    rows = [(row["what"], row["name"], row["mode"], row["status"]) for row in numbers["speed"]["rows"]]
    passes, steps = (rows[: len(asked)], rows[len(asked) :])
    assert passes == [("forward pass", name, "eager", "timed") for name in ("numpy", "torch", "transformers")]
    assert steps == [("training step", name, "eager", "timed") for name in ("numpy", "torch")]
    assert "1 thread each, as OMP_NUM_THREADS says" in page and numbers["speed"]["threads"] == 1


def made(folder: Path, library: Path, **options: Any) -> Report:
    """Makes a report on a folder while transformers loads another one."""
    subject = open_subject(folder, TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "port_of", lambda name, model, temporary, original=making.port_of: original(name, library, temporary))
        return making.make(subject, Options(names=("numpy", "transformers"), dtypes=("float32",), **options))


@pytest.mark.conformance
@pytest.mark.parametrize("kind", ["LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM", "MixtralForCausalLM"])
def test_a_decoder_of_transformers_that_differs_is_named_and_one_that_does_not_is_not(kind: str, tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        modern(folder, kind=kind).float().save_pretrained(folder)
    edit(other, rms_norm_eps=20.0)
    good, bad = made(own, own, sections=("predictions", "matrix")), made(own, other, sections=("predictions", "layers"))
    assert good.conforms and good.problems == {} and good.present == ["numpy", "transformers"]
    assert {row.port for row in good.summary.passed} == {"numpy", "transformers"} and not good.predictions.flips  # type: ignore[union-attr]
    assert {flip.name for flip in bad.predictions.flips} == {"transformers"} == {*bad.problems}  # type: ignore[union-attr]
    assert not bad.conforms and verdict(bad)[1] == "transformers differs on own"
    assert all(place.found["transformers"].excess > 1 for place in bad.layers.outputs[1:])  # type: ignore[union-attr]


@pytest.mark.conformance
def test_the_likeliest_tokens_of_each_mask_are_shown_and_a_folder_that_transformers_cannot_load_is_said(tmp_path: Path) -> None:
    folder, broken = tmp_path / "own", tmp_path / "broken"
    for one in (folder, broken):
        one.mkdir()
        model = bert(one, kind="BertForMaskedLM").float()
        model.save_pretrained(one)
    (broken / "config.json").write_text("{}")
    subject = open_subject(folder, "the [MASK] brown [MASK]")
    options = Options(names=("numpy", "transformers"), sections=("predictions",))
    found = making.make(subject, options).predictions
    assert found and [place.title for place in found.places] == ["[MASK] at token 2", "[MASK] at token 4"] and not found.flips
    with torch.inference_mode():
        p_sv = model(torch.tensor(subject.inputs["source"])).logits[0].softmax(1)
    for place, position in zip(found.places, (2, 4), strict=True):
        likeliest = p_sv[position].topk(5)
        assert [one.word for one in place.candidates] == subject.words(likeliest.indices.tolist())
        np.testing.assert_allclose([one.found["transformers"] for one in place.candidates], likeliest.values, rtol=1e-4)
    without = made(folder, broken, sections=("predictions",))
    assert without.present == ["numpy"] and "config" in without.missing["transformers"]


@pytest.fixture
def browser(driver: Any, encoder: Any, tmp_path: Path) -> Iterator[Any]:
    with opened(driver, encoder[2], tmp_path):
        yield driver


def reading(browser: Any) -> list[list[str]]:
    """Returns the table rows that name one weight."""
    rows = browser.find_elements("css selector", "#reading tr")
    return [[cell.get_property("textContent") for cell in row.find_elements("css selector", "th, td")] for row in rows]


@pytest.mark.conformance
def test_keys_choose_a_head_and_a_weight(browser: Any, encoder: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    (one,) = encoder[3]["attention"]
    first = browser.find_element("css selector", ".overview button")
    browser.execute_script("arguments[0].focus()", first)
    first.send_keys(Keys.ARROW_DOWN)
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    chosen = browser.switch_to.active_element
    assert chosen.get_attribute("aria-pressed") == "true"
    assert chosen.get_attribute("aria-label").startswith("encoder self-attention, layer 1, head 1: ")
    assert browser.find_element("id", "head-title").text == "encoder self-attention · layer 1 · head 1"
    largest = max(one["largest"][name][1][1] for name in one["largest"])
    assert chosen.text == f"{largest:.1f}" and f"{largest:.2f} times the noise" in chosen.get_attribute("aria-label")
    maps = browser.find_element("id", "maps")
    maps.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    weight = one["reference"][1][1][2][1]
    assert browser.find_element("css selector", "#reading caption").text == f"query 2 “{one['queries'][2]}” → key 1 “{one['keys'][1]}”"
    rows = reading(browser)
    assert [row[0] for row in rows] == ["reference", "NumPy", "PyTorch", "TensorFlow", "JAX", "transformers"]
    assert float(rows[0][1]) == pytest.approx(weight, abs=1.3e-5)
    for (_, _, away, units), name in zip(rows[1:], ("numpy", "torch", "tf", "jax", "transformers"), strict=True):
        wanted = one["differences"][name][1][1][2][1]
        step = np.abs(one["differences"][name][1][1]).max() / 127
        shown = 0.51 * step + 0.0051 * abs(wanted)  # steps of 127 levels, in three digits
        assert float(away.replace("−", "-")) == pytest.approx(wanted, rel=0, abs=shown)
        assert float(units.split()[0]) == pytest.approx(abs(wanted) / one["noise"][1], abs=0.51 * step / one["noise"][1] + 0.006)


@pytest.mark.conformance
def test_a_map_of_the_reference_and_a_difference_of_every_implementation_and_a_cell_of_the_matrix_opens_its_cases(browser: Any) -> None:
    script = """
        return [...document.querySelectorAll("#maps canvas")].map((canvas) => {
          const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, colors = new Set();
          for (let i = 0; i < pixels.length; i += 4) colors.add(pixels.slice(i, i + 4).join());
          return [canvas.dataset.kind, canvas.dataset.name, colors.size, colors.has("0,0,0,255")];
        });"""
    browser.find_element("css selector", "#maps canvas")
    drawn = browser.execute_script(script)
    names = ("numpy", "torch", "tf", "jax", "transformers")
    assert [(kind, name) for kind, name, *_ in drawn] == [("weight", "reference"), *(("difference", name) for name in names)]
    assert min(colors for _, _, colors, _ in drawn) > 20
    assert not any(black for *_, black in drawn)  # NaN is drawn black
    browser.find_element("css selector", ".matrix td.pass a").click()
    assert browser.find_element("id", "cases").is_displayed()
    assert browser.find_element("id", "cases-title").text == "pool"


@pytest.mark.conformance
@pytest.mark.parametrize("width", [390, 768, 1440])
def test_no_width_scrolls_the_page_sideways_and_a_number_of_the_matrix_takes_one_line(browser: Any, width: int) -> None:
    tallest = "return Math.max(...[...document.querySelectorAll('.matrix td[data-short]')].map((cell) => cell.offsetHeight))"
    with wide(browser, width):
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert 0 < browser.execute_script(tallest) < 34
