"""The porting guide, built as a user builds it, and read in a real browser."""

import contextlib
import functools
import html
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import brightness, offline, prefer, violations, visited, wide
from invoke import refused
from selenium.webdriver.common.keys import Keys
from tiers import every, later

from rosettaformer.conformance.catalogue import all_defects
from rosettaformer.conformance.catalogue.mistakes import FRAMEWORKS
from rosettaformer.guide import site
from rosettaformer.guide.glossary import terms
from rosettaformer.guide.translation import DIRECTIONS
from rosettaformer.guide.translation.snippets import IMPORTS

ROOT = Path(__file__).resolve().parents[2]
# one page of every kind
KINDS = ("index.html", "glossary.html", "components/index.html", "components/layer_norm.html", "components/keep.html",
         "translate/index.html", "translate/pytorch-to-flax.html",
         "defects/index.html", "defects/MHA11.html", "models/index.html", "models/bert.html", "tutorials/index.html",
         "tutorials/add-a-backend.html", "tutorials/the-port-file.html")  # fmt: skip
QUICK = ("index.html", "components/layer_norm.html", "defects/MHA11.html")  # in the first tier
PLACES = [(1440, "light"), (390, "dark")]  # widths and schemes in the first tier
OTHERS = [(1440, "dark"), (768, "light"), (768, "dark"), (390, "light")]
pytestmark = pytest.mark.xdist_group("guide")  # measured and built once


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with offline() as browser:
        yield browser


def test_it_is_whole_and_small_and_loads_nothing_from_elsewhere(guide: Path) -> None:
    assert site.dangling(guide) == []
    assert sum(file.stat().st_size for file in guide.rglob("*")) < 15e6
    assert {file.stem for file in (guide / "defects").glob("*.html")} == {"index", *all_defects()}
    assert {file.stem for file in (guide / "translate").glob("*.html")} == {"index", *map("-to-".join, DIRECTIONS)}
    assert all((guide / kind).is_file() for kind in KINDS)
    for file in guide.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        loaded = re.findall(r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["']([^"']+)""", text)
        assert all(not re.match(r"(https?:)?//", source) for source in loaded), file
        assert len(re.findall("<h1[ >]", text)) == 1, file


def test_every_block_of_code_stands_where_it_says(guide: Path) -> None:
    """Quoted from the packages, from a file that a test runs, or from a mistake that a test makes."""
    seen = 0
    for file in guide.rglob("*.html"):
        for origin, text in blocks(file.read_text(encoding="utf-8")):
            source = source_of(origin)
            assert source and stands_in(text, source), (file.name, origin, text)
            seen += 1
    assert seen > 500


def blocks(page: str) -> Iterator[tuple[str, str]]:
    for origin, inner in re.findall(r'<figure class="code"[^>]*data-origin="([^"]*)".*?<code[^>]*>(.*?)</code>', page, re.DOTALL):
        yield html.unescape(origin), html.unescape(re.sub(r"<[^>]+>", "", inner))


@functools.cache
def source_of(origin: str) -> str:
    """The text of a file of the project; of a mistake what its table holds."""
    if origin == "rosettaformer/guide/translation/snippets.py":  # what the snippets of a framework take for granted
        return "\n".join(line for lines in IMPORTS.values() for line in lines)
    if not origin.startswith("mistakes/"):
        text = (ROOT / origin.partition("#")[0]).read_text(encoding="utf-8")
        return "\n".join([text, *strings(tomllib.loads(text))]) if origin.endswith(".toml") else text
    name = origin.removeprefix("mistakes/")
    tables = mistakes()
    if name == "said.toml":
        return "\n".join(text for table in tables for text in table.values() if isinstance(text, str))
    identity, framework = name.split(".")
    edits = next(table[identity][framework] for table in tables if identity in table and not isinstance(table[identity], str))
    return "\n".join(edit.get(side, "") for edit in edits for side in ("right", "wrong"))


@functools.cache
def mistakes() -> list[dict[str, Any]]:
    return [tomllib.loads(file.read_text(encoding="utf-8")) for file in (ROOT / "rosettaformer/conformance/catalogue").glob("*.toml")]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)


def stands_in(text: str, source: str) -> bool:
    """Whether the lines of the text stand in the source in this order: a page takes indentation and docstrings away."""
    lines = iter([line.strip() for line in source.splitlines()])
    return all(line.strip() in lines for line in text.splitlines() if line.strip())


def test_a_link_that_leads_nowhere_is_found_and_a_folder_of_other_files_kept(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text('<a href="a/b.html#here">b</a><a href="https://example.org">no</a><img src="c.png">')
    (tmp_path / "a" / "b.html").write_text(
        '<h1 id="there"></h1><a href="../index.html">up</a><a href="#there">x</a><a href="gone.html">y</a>'
    )
    assert sorted(site.dangling(tmp_path)) == [("a/b.html", "gone.html"), ("index.html", "a/b.html#here"), ("index.html", "c.png")]
    (tmp_path / "thesis.tex").write_text("all of it")
    assert "new or empty folder" in refused("guide", "--out", tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "all of it"


@pytest.mark.second
def test_the_command_measures_and_writes_the_same_pages(guide: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rosettaformer", "guide", "--out", str(tmp_path / "site")]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    pages = [{file.relative_to(folder).as_posix() for file in folder.rglob("*")} for folder in (guide, tmp_path / "site")]
    assert pages[0] == pages[1]


QUERIES = [
    ("nn.LayerNorm", "components/layer_norm.html"),
    ("keras.layers.LayerNormalization", "components/layer_norm.html"),
    ("nnx.LayerNorm", "components/layer_norm.html"),
    ("F.scaled_dot_product_attention", "components/scaled_dot_product_attention.html"),
    ("MHA11", "defects/MHA11.html"),
    ("bert", "models/bert.html"),
    ("llama", "models/llama3.html"),
    ("check", "tutorials/index.html"),
    ("port file", "tutorials/the-port-file.html"),
    ("tolerance", "tutorials/port-pytorch.html"),
    ("many heads", "tutorials/port-keras.html"),
    ("cotangent", "glossary.html"),
    ("keep", "components/keep.html"),
    ("a whole encoder layer", "translate/numpy-to-keras.html"),
]


@pytest.mark.parametrize("query, path", every(4, QUERIES))
def test_the_search_leads_there_by_keyboard(driver: Any, guide: Path, query: str, path: str) -> None:
    with visited(driver, guide / "models" / "index.html"):
        keys(driver, "/")
        keys(driver, query)
        assert driver.find_element("id", "search").get_attribute("aria-expanded") == "true"
        paths = [option.get_attribute("data-href") for option in driver.find_elements("css selector", "#found [role=option]")]
        assert any(found.startswith(f"../{path}") for found in paths[:5]), paths
        at = next(index for index, found in enumerate(paths) if found.startswith(f"../{path}"))
        keys(driver, Keys.ARROW_DOWN * at + Keys.ENTER)
        assert driver.current_url.partition("#")[0].endswith(path)


def test_the_search_has_components_first_one_result_for_a_topic_and_says_where_there_is_none(driver: Any, guide: Path) -> None:
    for pair in ("keras-to-pytorch", "pytorch-to-flax"):
        with visited(driver, guide / "translate" / f"{pair}.html"):
            pass
        with visited(driver, guide / "index.html"):
            keys(driver, "/")
            keys(driver, "nn.LayerNorm")
            paths = [option.get_attribute("data-href") for option in driver.find_elements("css selector", "#found [role=option]")]
            assert paths[:2] == ["components/layer_norm.html#framework", f"translate/{pair}.html#layer-norm"]
    with visited(driver, guide / "index.html"):
        keys(driver, "/")
        keys(driver, "nn.LayerNorm")
        results = driver.find_elements("css selector", "#found > *")
        assert [result.get_attribute("role") for result in results] == ["option", "group"]
        assert results[1].get_attribute("aria-label") == "From X to Y: Layer normalisation"
        ways = results[1].find_elements("css selector", "a[role=option]")
        assert {way.text for way in ways} == {
            "NumPy to PyTorch", "PyTorch to Keras", "PyTorch to Flax", "Keras to PyTorch", "Flax to PyTorch",
        }  # fmt: skip
        assert violations(driver) == []
        next(way for way in ways if way.text == "PyTorch to Flax").click()
        assert driver.current_url.endswith("translate/pytorch-to-flax.html#layer-norm")
        driver.execute_script("localStorage.clear()")
    with visited(driver, guide / "index.html"):
        keys(driver, "/")
        keys(driver, "pytorch")
        first = driver.find_element("css selector", "#found > *")
        assert len(first.find_elements("css selector", "a[role=option]")) == 5
        assert all("#" not in way.get_attribute("data-href") for way in first.find_elements("css selector", "a[role=option]"))
    with visited(driver, guide / "index.html"):
        keys(driver, "/")
        keys(driver, "no such thing anywhere")
        assert driver.find_element("id", "found").text == "nothing found"
        keys(driver, Keys.ENTER + Keys.ESCAPE)
        assert not driver.find_element("id", "found").is_displayed()


def test_every_term_of_the_glossary_is_found_and_words_lead_there(guide: Path, index: dict[str, set[tuple[str, str]]]) -> None:
    text = (guide / "glossary.html").read_text(encoding="utf-8")
    found = dict(index["glossary.html"])
    assert {term.name for term in terms()} <= found.keys()
    assert [term.name for term in terms()] == sorted((term.name for term in terms()), key=str.lower)
    assert all(f'id="{fragment[1:]}"' in text for fragment in found.values())
    assert all(term.see and re.fullmatch(r".+[.)]", term.text) for term in terms())
    for page in ("index.html", "components/layer_norm.html", "defects/NRM1.html"):
        assert "glossary.html#" in (guide / page).read_text(encoding="utf-8"), page


def test_a_defects_page_is_read_to_its_end_by_keyboard(driver: Any, guide: Path) -> None:
    with visited(driver, guide / "defects" / "MHA11.html"):
        tabs = driver.find_elements("css selector", "[role=tab]")
        assert [tab.text for tab in tabs] == ["PyTorch", "Keras", "Flax"]
        tabs[0].send_keys(Keys.ARROW_RIGHT)
        assert shown(driver) == ["Keras"]
        assert driver.switch_to.active_element.text == "Keras"
        driver.switch_to.active_element.send_keys(Keys.END)
        assert shown(driver) == ["Flax"]
        assert "impl_jax/layers.py" in driver.find_element("css selector", "[role=tabpanel]:not([hidden])").text
        headings = [heading.text for heading in driver.find_elements("tag name", "h2")]
        assert headings == ["Wrong and right", "The same mistake otherwise", "What it does", "How diagnosis says it", "Seen in"]
        assert "your output equals the reference with MHA11" in driver.find_element("css selector", "main").text
        assert len(driver.find_elements("css selector", "table tbody tr")) >= 3
        driver.get((guide / "defects" / "NRM1.html").as_uri())
        assert shown(driver) == ["Flax"]  # what was chosen stays chosen
        driver.execute_script("localStorage.clear()")


def test_all_that_can_be_reached_by_the_mouse_can_be_reached_by_the_tab_key(driver: Any, guide: Path) -> None:
    with visited(driver, guide / "components" / "layer_norm.html"):
        wanted = driver.execute_script(
            "return [...document.querySelectorAll('a[href], button, input, summary, [tabindex=\"0\"]')]"
            ".filter(node => node.checkVisibility() && node.tabIndex >= 0 && !node.disabled).length"
        )
        reached: dict[Any, None] = {}
        for _ in range(wanted + 2):
            keys(driver, Keys.TAB)
            reached[driver.switch_to.active_element] = None
        assert len([node for node in reached if node.tag_name != "body"]) >= wanted


def test_light_and_dark(driver: Any, guide: Path) -> None:
    for scheme, other in (("light", "dark"), ("dark", "light")):
        prefer(driver, scheme)
        with visited(driver, guide / "index.html"):
            assert (brightness(driver, "body", "background-color") > 128) == (scheme == "light")
            driver.find_element("id", "theme").click()
            assert (brightness(driver, "body", "background-color") > 128) == (other == "light")
            driver.get((guide / "defects" / "index.html").as_uri())
            assert (brightness(driver, "body", "background-color") > 128) == (other == "light")  # it is kept
            driver.execute_script("localStorage.clear()")
    prefer(driver, "light")


@pytest.mark.parametrize("places", [PLACES, later(OTHERS)], ids=["some", "others"])
@pytest.mark.parametrize("kind", [kind if kind in QUICK else later(kind) for kind in KINDS])
def test_no_page_is_wider_than_its_window_and_axe_finds_no_violation(
    driver: Any, guide: Path, kind: str, places: list[tuple[int, str]]
) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(prefer, driver, "light")
        for width, scheme in places:
            prefer(driver, scheme)
            with wide(driver, width), visited(driver, guide / kind):
                assert driver.execute_script("return document.documentElement.scrollWidth") <= width, (width, "scrolls")
                if width != 768:
                    assert violations(driver) == [], (width, scheme)


def keys(driver: Any, text: str) -> None:
    driver.switch_to.active_element.send_keys(text)


def shown(driver: Any) -> list[str]:
    panels = driver.find_elements("css selector", "[role=tabpanel]:not([hidden])")
    return [panel.get_attribute("data-tab") for panel in panels]


@pytest.mark.second
@pytest.mark.parametrize(
    "name",
    ["gpt2", "llama3", pytest.param("bert", marks=pytest.mark.exhaustive), pytest.param("transformer", marks=pytest.mark.exhaustive)],
)
def test_the_models_snippets_agree_with_the_libraries(name: str) -> None:
    file = ROOT / "rosettaformer" / "guide" / "snippets" / "models" / f"{name}.py"
    ran = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    errors = {line.split()[0]: float(line.split()[1]) for line in ran.stdout.splitlines()}
    assert set(errors) == {"numpy", *FRAMEWORKS}
    assert max(errors.values()) < 2e-6  # of float32 logits of size 1, after two layers


def test_a_models_page_begins_with_its_tensors(guide: Path) -> None:
    for page in (guide / "models").glob("*.html"):
        if page.name != "index.html":
            order = re.findall(r'<h2 id="(\w+)">', page.read_text(encoding="utf-8"))
            assert order == ["tensors", "notes", "load", "choices", "pass"], page.name


@pytest.mark.second
def test_a_models_table_holds_every_tensor_that_the_library_stores(guide: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch")
    llama = {"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8}
    with torch.device("meta"):
        models = {
            "bert": transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=1)),
            "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1)),
            "llama3": transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=1, **llama)),
        }
    for name, model in models.items():
        page = html.unescape((guide / "models" / f"{name}.html").read_text(encoding="utf-8"))
        for key, tensor in model.state_dict().items():
            folded = re.sub(r"\.0\.", ".*.", re.sub(r"^(bert|transformer|model)\.", "", key))
            if folded.endswith((".attn.bias", "position_ids")) or folded == "cls.predictions.bias":
                continue
            row = re.search(rf"<code>{re.escape(folded)}</code>.*?<td class=\"shape\"[^>]*>([^<]*)", page, re.DOTALL)
            assert row, folded
            assert row[1] == " × ".join(map(str, tensor.shape)), folded
