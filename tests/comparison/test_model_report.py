"""`rosettaformer report`: its numbers are those of transformers and of torch's autograd; its page and its files."""

import base64
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import names_nothing_outside, offline, opened, wide
from checkpoint_models import CONFIG, random_parameters
from invoke import invoke, refused
from model_folders import bert, gpt2
from training_runs import log, train

from reference_numpy import TransformerConfig, parameters
from reference_numpy.states import states
from rosettaformer.checkpoints import canonical, load
from rosettaformer.model_report.chart import Chart

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

TEXT, PAIR = "the quick brown fox jumps over the lazy dog", "née Zoë went to 北京"


def report(checkpoint: Path, *options: object, code: int = 0, folder: Path) -> tuple[str, dict[str, Any]]:
    out, numbers = folder / "report.html", folder / "report.json"
    outcome = invoke("report", "--checkpoint", checkpoint, "--out", out, "--json", numbers, *options)
    assert outcome.code == code, outcome
    assert outcome.out.splitlines()[-1].startswith(f"{out}: ")
    return out.read_text(encoding="utf-8"), json.loads(numbers.read_text())


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A BERT in four implementations: the model, the folder, the page and the numbers."""
    folder = tmp_path_factory.mktemp("encoder")
    model = bert(folder)
    only = ("--only", "matrix,layers,attention", "--dtype", "float32,bfloat16", "--figures", folder / "figures")
    return model, folder, *report(folder, "--text", TEXT, "--pair", PAIR, *only, folder=folder)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A GPT-2 in NumPy and PyTorch, in training."""
    folder = tmp_path_factory.mktemp("decoder")
    model = gpt2(folder)
    choices = ("--only", "training", "--backend", "numpy,torch", "--steps", "2", "--text", TEXT)
    return model, folder, *report(folder, *choices, folder=folder)


def rounded(model: Any) -> Any:
    """The model in float64 with weights of float32."""
    return model.float().double()


def theirs(model: Any, numbers: dict[str, Any]) -> Any:
    inputs = {name: torch.tensor(numbers["inputs"][own]) for name, own in (("input_ids", "source"), ("token_type_ids", "segment_bs"))}
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        return rounded(model)(**inputs, output_attentions=True, output_hidden_states=True)


@pytest.mark.second
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
    found = states(parameters.nest(values), TransformerConfig.from_dict(numbers["config"]), **inputs)["encoder"]["hidden_lbtd"][:, 0]
    errors = np.abs(found - hidden).max(axis=(1, 2))
    np.testing.assert_allclose([row["found"]["numpy"]["error"] for row in rows], errors, rtol=1e-6)
    assert all(set(row["found"]) == {"numpy", "torch", "tf", "jax"} for row in rows)
    assert all(0 < one["excess"] < 1 for row in rows for one in row["found"].values())
    half = [row for row in numbers["layers"] if row["dtype"] == "bfloat16"]
    assert min(row["noise"] / row["largest"] for row in half) > 1000 * max(row["noise"] / row["largest"] for row in rows)


@pytest.mark.second
def test_the_matrix_is_that_of_the_check_on_one_page_with_figures_that_names_nothing_outside(encoder: Any) -> None:
    _, _, page, numbers = encoder
    matrix = numbers["matrix"]
    assert (matrix["verdict"], matrix["failed"]) == ("all conform", 0)
    assert {(row["port"], row["dtype"]) for row in matrix["results"]} == {
        (port, dtype) for port in ("numpy", "torch", "tf", "jax") for dtype in ("float32", "bfloat16")
    }
    assert {row["component"] for row in matrix["results"]} == {"pool", "classify", "states"}
    assert numbers["verdict"].startswith("Four implementations conform on encoder")
    assert numbers["verdict"] in page and f"{matrix['compared']} outputs compared, 0 failed" in page
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


@pytest.mark.second
def test_loss_and_gradient_norm_are_those_of_autograd(decoder: Any) -> None:
    model, _, page, numbers = decoder
    ids = torch.tensor(numbers["inputs"]["target"])
    loss = torch.nn.functional.cross_entropy(rounded(model)(ids).logits[0, :-1], ids[0, 1:])  # transformers' own loss is of float32
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
    assert "every step has the text as its batch" in page and "20 float32 runs" in page


def test_a_canonical_file_reads_random_tokens_of_a_seed_and_is_timed(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    canonical.save(file, CONFIG, random_parameters(CONFIG))
    few = ("--backend", "numpy", "--dtype", "float32", "--rounds", "2", "--steps", "1", "--seed", "3")
    page, numbers = report(file, *few, "--only", "attention,speed,training", folder=tmp_path)
    assert "no text was given: the tokens are 24 random ids of seed 3" in page
    assert [one["name"] for one in numbers["attention"]] == ["encoder self-attention", "decoder self-attention", "decoder cross-attention"]
    rng = np.random.default_rng(3)
    assert numbers["inputs"]["source"] == rng.integers(0, CONFIG.source_vocabulary, (1, 24)).tolist()
    rows = numbers["speed"]["rows"]
    assert [(row["what"], row["name"], row["status"], len(row["samples_ms"])) for row in rows] == [
        ("forward pass", "numpy", "timed", 2), ("training step", "numpy", "timed", 2),
    ]  # fmt: skip
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
    few = ("--only", "layers,matrix", "--dtype", "float32", "--backend", "numpy,jax")
    page, numbers = report(file, *few, code=3, folder=tmp_path)
    assert list(numbers["missing"]) == ["jax"] and "pip install" in numbers["missing"]["jax"]
    assert numbers["verdict"] == "One implementation conforms on model.safetensors; JAX missing"
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
    assert "--text needs a tokenizer" in refused(*given, "--text", "a text")
    assert "--pair goes with --text" in refused(*given, "--pair", "a text")
    assert "section must be one of" in refused(*given, "--only", "matrx") and "matrix" in refused(*given, "--only", "matrx")
    assert "--quick is of float32 alone" in refused(*given, "--quick", "--dtype", "float64")
    assert "at least one section" in refused(*given, "--only", "training", "--steps", "0")
    assert "the folder" in refused("report", "--checkpoint", file, "--out", tmp_path / "no" / "report.html")
    assert "holds something else" in refused(*given, "--figures", tmp_path / "own")
    assert (tmp_path / "own" / "notes.txt").read_text() == "mine"
    assert not out.exists()


@pytest.mark.second
def test_a_run_shows_what_it_recorded(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, "--steps", "6", "--validate-every", "3")
    few = ("--backend", "numpy", "--dtype", "float32", "--only", "training,attention", "--steps", "1", "--text", "abcd")
    page, numbers = report(run, *few, "--figures", tmp_path / "figures", folder=tmp_path)
    assert "the target is the reference" in page and "recorded by the run" in page
    recorded = numbers["recorded"]
    assert recorded["training"] == pytest.approx([entry["loss"] for entry in log(run)])
    assert [loss for loss in recorded["validation"] if loss] == pytest.approx([entry["loss"] for entry in log(run, "validation")])
    assert (tmp_path / "figures" / "recorded.png").is_file()
    refusal = refused("report", "--checkpoint", run, "--leave-out", "pooler", "--out", tmp_path / "report.html")
    assert "a run has nothing to leave out or to ignore" in refusal


def test_what_is_interrupted_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("rosettaformer.model_report.figures.write", interrupted)
    file, out, figures = tmp_path / "model.safetensors", tmp_path / "report.html", tmp_path / "figures"
    canonical.save(file, CONFIG, random_parameters(CONFIG))
    out.write_text("old")
    choices = ("--backend", "numpy", "--only", "attention", "--figures", figures, "--out", out)
    assert invoke("report", "--checkpoint", file, *choices).code == 130
    assert out.read_text() == "old" and {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "report.html"}


@pytest.mark.parametrize("values", [[10.93, 11.12, 11.05], [29.9, 11.2], [0.0, 3e-7], [1e6 + 1, 1e6 + 3], [-0.2, 0.4], [5.0]])
def test_ticks_of_a_linear_axis_have_different_labels(values: list[float]) -> None:
    drawn = Chart("loss", "loss", "step", "loss", [*"123"][: len(values)], {"numpy": values})
    labels = [drawn.tick(value) for value in drawn.ticks]
    assert len({*labels}) == len(labels), labels
    step = drawn.ticks[1] - drawn.ticks[0]
    for value, label in zip(drawn.ticks, labels, strict=True):
        assert abs(float(label.replace(",", "")) - value) <= step / 20


def test_a_long_text_is_cut_and_that_is_said(tmp_path: Path) -> None:
    from rosettaformer.model_report.reported_model import open_subject

    gpt2(tmp_path, n_positions=512)
    subject = open_subject(tmp_path, "the lazy dog " * 60)
    assert subject.inputs["target"].shape == (1, 64) and len(subject.tokens["target"]) == 64
    assert re.fullmatch(r"the first 64 of \d{3} target tokens are read", subject.notes[0])


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with offline() as driver:
        yield driver


@pytest.fixture
def browser(driver: Any, encoder: Any, tmp_path: Path) -> Iterator[Any]:
    with opened(driver, encoder[2], tmp_path):
        yield driver


def reading(browser: Any) -> list[list[str]]:
    """The rows of the table that names one weight."""
    rows = browser.find_elements("css selector", "#reading tr")
    return [[cell.get_property("textContent") for cell in row.find_elements("css selector", "th, td")] for row in rows]


@pytest.mark.second
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
    assert [row[0] for row in rows] == ["reference", "NumPy", "PyTorch", "TensorFlow", "JAX"]
    assert float(rows[0][1]) == pytest.approx(weight, abs=1.3e-5)
    for (_, _, away, units), name in zip(rows[1:], ("numpy", "torch", "tf", "jax"), strict=True):
        wanted = one["differences"][name][1][1][2][1]
        step = np.abs(one["differences"][name][1][1]).max() / 127
        shown = 0.51 * step + 0.0051 * abs(wanted)  # of 127 steps, in three digits
        assert float(away.replace("−", "-")) == pytest.approx(wanted, rel=0, abs=shown)
        assert float(units.split()[0]) == pytest.approx(abs(wanted) / one["noise"][1], abs=0.51 * step / one["noise"][1] + 0.006)


@pytest.mark.second
def test_every_map_is_drawn_in_every_implementation_and_a_cell_of_the_matrix_opens_its_cases(browser: Any) -> None:
    script = """
        return [...document.querySelectorAll("#maps canvas")].map((canvas) => {
          const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, colours = new Set();
          for (let i = 0; i < pixels.length; i += 4) colours.add(pixels.slice(i, i + 4).join());
          return [canvas.dataset.kind, canvas.dataset.name, colours.size, colours.has("0,0,0,255")];
        });"""
    browser.find_element("css selector", "#maps canvas")
    drawn = browser.execute_script(script)
    assert [(kind, name) for kind, name, *_ in drawn] == [
        (kind, name) for kind in ("weight", "difference") for name in ("numpy", "torch", "tf", "jax")
    ]
    assert min(colours for _, _, colours, _ in drawn) > 20
    assert not any(black for *_, black in drawn)  # what is no number is drawn black
    browser.find_element("css selector", ".matrix td.pass a").click()
    assert browser.find_element("id", "cases").is_displayed()
    assert browser.find_element("id", "cases-title").text == "pool"


@pytest.mark.second
@pytest.mark.parametrize("width", [390, 768, 1440])
def test_no_width_scrolls_the_page_sideways(browser: Any, width: int) -> None:
    with wide(browser, width):
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
