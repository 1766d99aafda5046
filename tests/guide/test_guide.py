"""The porting guide, built as a user builds it and read in a real browser."""

import contextlib
import functools
import html
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import prefer, violations, visited, wide
from invoke import refused
from kinds import conformance
from selenium.webdriver.common.keys import Keys
from tutorials import all_pages, followed

from rosettaformer.files.checkpoints.hugging_face import FAMILIES
from rosettaformer.guide import defects, site
from rosettaformer.guide.glossary import terms
from rosettaformer.guide.planted import planted
from rosettaformer.guide.translation import DIRECTIONS, direction
from rosettaformer.guide.translation.snippets import IMPORTS
from rosettaformer.guide.translation.table import SECTIONS, rows
from rosettaformer.judge.catalogue import all_defects
from rosettaformer.judge.catalogue.alteration import FRAMEWORKS

ROOT = Path(__file__).resolve().parents[2]
# one page of every kind
KINDS = [f"{name}.html" for name in [
    "index", "glossary", "components/index", "components/layer_norm", "components/keep", "translate/index",
    "translate/pytorch-to-flax", "translate/pytorch-to-flax-attention", "defects/index", "defects/MHA11",
    "models/index", "models/bert", "tutorials/index", "tutorials/add-a-backend", "tutorials/the-port-file",
]]  # fmt: skip
QUICK = ("index.html", "components/layer_norm.html", "defects/MHA11.html")
PLACES = [(1440, "light"), (390, "dark")]  # widths and color schemes
OTHERS = [(1440, "dark"), (768, "light"), (768, "dark"), (390, "light")]
pytestmark = pytest.mark.xdist_group("guide")  # measured and built once


def test_it_is_whole_and_small_and_loads_nothing_from_elsewhere(guide: Path) -> None:
    assert site.dangling(guide) == []
    assert sum(file.stat().st_size for file in guide.rglob("*")) < 15e6
    assert {file.stem for file in (guide / "defects").glob("*.html")} == {"index", *all_defects()}
    made = {direction.path(*pair, section) for pair in DIRECTIONS for section in ("", *SECTIONS)}
    assert {f"translate/{file.name}" for file in (guide / "translate").glob("*.html")} == {"translate/index.html", *made}
    assert all((guide / kind).is_file() for kind in KINDS)
    for file in guide.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        loaded = re.findall(r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["']([^"']+)""", text)
        assert all(not re.match(r"(https?:)?//", source) for source in loaded), file
        assert len(re.findall("<h1[ >]", text)) == 1, file
        hidden = {tag for tag in re.findall("<[^>]+ hidden[ >]", text) if 'id="found"' not in tag and 'class="yours"' not in tag}
        assert not hidden, (file, "all is readable without scripts")


def test_every_block_of_code_stands_where_it_says(guide: Path) -> None:
    """Quoted from the packages, or from a file that a test runs."""
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
    """Returns the text of a file of the project."""
    if origin == "rosettaformer/guide/translation/snippets.py":  # the preamble of a framework's snippets
        return "\n".join(line for lines in IMPORTS.values() for line in lines)
    if origin.endswith("#final"):  # a tutorial's final state of a file, from git
        folder, name = origin.removesuffix("#final").split("/")[-2:]
        page = next(page for page in all_pages().values() if page.values["session"].folder == folder)
        with tempfile.TemporaryDirectory() as place:
            list(followed(page, Path(place), ()))
            return (Path(place) / name).read_text(encoding="utf-8")
    if "/commands.toml#" in origin:
        file, _, block = origin.partition("#")
        (text,) = (table[block] for table in tables_of(tomllib.loads((ROOT / file).read_text(encoding="utf-8"))) if block in table)
        return "\n".join(f"$ {line}" for line in text.splitlines())
    if origin.endswith("/wrong.txt"):
        return "\n".join(edit.wrong for edits in planted().values() for edit in edits)
    if "/translation/" in origin and origin.endswith(".txt"):
        cells = [(row.given, cell.code, cell.measure) for row in rows() for cell in row.cells.values()]
        return "\n".join(part for cell in cells for part in cell)
    return (ROOT / origin.partition("#")[0]).read_text(encoding="utf-8")


def tables_of(commands: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the tables of a tutorial's commands."""
    return [table for name, table in commands.items() if name != "names"] + [*commands.get("names", {}).values()]


def stands_in(text: str, source: str) -> bool:
    """Whether the source contains the text's lines in this order: a page removes indentation and docstrings."""
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
    assert "empty" in refused("guide", "--out", tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "all of it"


QUERIES = [
    ("nn.LayerNorm", "components/layer_norm.html"),
    conformance("F.scaled_dot_product_attention", "components/scaled_dot_product_attention.html"),
    ("port file", "tutorials/the-port-file.html"),
    conformance("MHA11", "defects/MHA11.html"),
    conformance("bert", "models/bert.html"),
    conformance("a whole encoder layer", "translate/pytorch-to-keras-attention.html"),
]


@pytest.mark.parametrize("query, path", QUERIES)
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


def found(driver: Any, query: str, options: str = "#found [role=option]") -> list[str]:
    """Returns the targets of a query's results, in the displayed order."""
    box = driver.find_element("id", "search")
    box.clear()
    box.send_keys(query)
    return [option.get_attribute("data-href") for option in driver.find_elements("css selector", options)]


def test_the_search_has_components_first_and_near_terms_where_there_is_none(driver: Any, guide: Path) -> None:
    for pair in ("keras-to-pytorch", "pytorch-to-flax"):  # the direction read last
        with visited(driver, guide / "translate" / f"{pair}.html"):
            pass
        with visited(driver, guide / "index.html"):
            topic = f"translate/{pair}-layers.html#layer-norm"
            assert found(driver, "nn.LayerNorm")[:2] == ["components/layer_norm.html#framework", topic]
    with visited(driver, guide / "index.html"):
        found(driver, "nn.LayerNorm")
        results = driver.find_elements("css selector", "#found > *")
        assert [result.get_attribute("role") for result in results] == ["option", "group", "group"]
        ways = results[1].find_elements("css selector", "a[role=option]")
        assert len(ways) == 5  # the directions from or to PyTorch, and from NumPy
        assert violations(driver) == []
        next(way for way in ways if way.text == "PyTorch to Flax").click()
        assert driver.current_url.endswith("translate/pytorch-to-flax-layers.html#layer-norm")
        driver.execute_script("localStorage.clear()")
    with visited(driver, guide / "index.html"):
        directions = found(driver, "pytorch", "#found > :first-child a[role=option]")
        assert len(directions) == 5 and not [way for way in directions if "#" in way]
    with visited(driver, guide / "index.html"):
        found(driver, "rottary embeding")
        offered = [line.lower() for line in driver.find_element("id", "found").text.splitlines()]
        keys(driver, Keys.ARROW_DOWN * (offered.index("rotary embedding") - 1) + Keys.ENTER)
        first = driver.find_element("css selector", "#found [role=option][data-href]")
        assert first.get_attribute("data-href").startswith("components/rotary_embedding.html")
        keys(driver, Keys.ESCAPE)
        assert not driver.find_element("id", "found").is_displayed()


# what no list of synonyms has as it is written here -> what comes first for it
SOUGHT = {
    "what is grouped-query attention?": "components/multi_head_attention.html",
    "key-value cache": "components/decode_in_steps.html",
    "padding-mask": "components/padding_mask.html",
    "how to convert weights": r"translate/[a-z-]+\.html#layouts",
    "RMSNorm half precision": r"translate/[a-z-]+\.html#rms-norm",  # found by other words for a part of it
    "rotary base": "components/config.html#rotary_base",
    "nnx.split": r"translate/[a-z-]+\.html#structure-and-values",
    "convert keras to pytorch": "translate/keras-to-pytorch.html$",
    "nn.Linear to flax": r"translate/[a-z]+-to-flax-[a-z]+\.html#linear",
    "nn.LayerNorm in keras": r"translate/[a-z]+-to-keras-[a-z]+\.html#layer-norm",
    "Whisper": "models/index.html#others",
    "my logits are wrong": "tutorials/what-diagnosis-says.html",
    "wrong outputs?": "tutorials/what-diagnosis-says.html",
}


def test_the_search_knows_other_words_and_has_pages_for_users_first(
    driver: Any, guide: Path, index: dict[str, set[tuple[str, str]]]
) -> None:
    """Every synonym leads to a page on its subject; a topic is on a page of every direction."""
    script = """return arguments[0].map(query => {
      box.value = query;
      box.dispatchEvent(new Event("input"));
      return found.querySelector("[role=option]").dataset.href;
    })"""
    words = {word: thing["pages"] for thing in site.synonyms() for word in thing["words"]}
    with visited(driver, guide / "index.html"):
        first = dict(zip([*words, *SOUGHT], driver.execute_script(script, [*words, *SOUGHT]), strict=True))
    for query, path in SOUGHT.items():
        assert re.match(path, first[query] or "nothing"), (query, first[query])
    places = {place for path, names in index.items() for place in (path, *(path + fragment for _, fragment in names))}
    topics = {fragment for path, names in index.items() if path.startswith("translate/") for _, fragment in names}
    assert len({word.lower() for word in words}) == sum(len(thing["words"]) for thing in site.synonyms())
    assert {page for pages in words.values() for page in pages} <= places | topics
    assert [word for word, pages in words.items() if not any(page in first[word] for page in pages)] == []


def test_every_block_of_code_is_copied_by_keyboard_and_of_a_console_the_commands(driver: Any, guide: Path) -> None:
    def pasted() -> str:
        box = driver.find_element("id", "search")
        box.clear()
        box.send_keys(Keys.CONTROL + "v")
        return box.get_attribute("value")

    with visited(driver, guide / "tutorials" / "index.html"):
        for figure in driver.find_elements("css selector", "figure.code"):
            code = figure.find_element("tag name", "code").get_attribute("textContent")
            button = figure.find_element("css selector", "button[aria-label^='Copy ']")
            button.send_keys(Keys.ENTER)
            assert button.text == driver.find_element("css selector", "[role=status]").get_attribute("textContent") == "Copied"
            commands = re.findall(r"^\$ (.*)$", code, re.MULTILINE)
            assert pasted().split() == " ".join(commands or [code]).split()
    with visited(driver, guide / "components" / "softmax.html"):
        driver.find_element("css selector", "#compare th[data-column=impl_torch] button").send_keys(Keys.ENTER)
        assert "def softmax(" in pasted() and "np." not in pasted()


def test_defects_are_in_the_order_of_their_numbers_and_those_seen_in_a_framework_are_chosen(driver: Any, guide: Path) -> None:
    with visited(driver, guide / "defects" / "index.html"):
        texts = "return [...document.querySelectorAll('ul.defects a')].filter(link => link.checkVisibility()).map(link => link.innerText)"
        titles = driver.execute_script(texts)
        listed = [title.split()[0] for title in titles]
        assert listed == sorted(all_defects(), key=lambda id: (id.rstrip("0123456789"), int(re.sub(r"\D", "", id))))
        assert all(re.match(r"[A-Z]+\d+\s+[^a-z]", title) for title in titles)
        driver.find_element("css selector", "[data-filter=Flax]").click()
        left = [title.split()[0] for title in driver.execute_script(texts)]
        assert left == [id for id in listed if "Flax" in defects.seen_in(all_defects()[id])] != []


def test_without_scripts_no_control_is_shown_that_does_nothing(driver: Any, guide: Path) -> None:
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        for page in ("translate/pytorch-to-flax-attention.html", "defects/index.html", "components/layer_norm.html"):
            driver.get((guide / page).as_uri())
            controls = driver.find_elements("css selector", "button, select, input")
            assert controls and not [control.get_attribute("outerHTML") for control in controls if control.is_displayed()], page
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_every_term_of_the_glossary_is_found_and_words_lead_there(guide: Path, index: dict[str, set[tuple[str, str]]]) -> None:
    text = (guide / "glossary.html").read_text(encoding="utf-8")
    found = dict(index["glossary.html"])
    assert {term.name for term in terms()} <= found.keys()
    assert [term.name for term in terms()] == sorted((term.name for term in terms()), key=str.lower)
    assert all(f'id="{fragment[1:]}"' in text for fragment in found.values())
    assert all(term.see and re.fullmatch(r".+[.)]", term.text) for term in terms())
    for page in ("index.html", "components/layer_norm.html", "defects/NRM1.html"):
        assert "glossary.html#" in (guide / page).read_text(encoding="utf-8"), page


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


@pytest.mark.parametrize("places", [PLACES, conformance(OTHERS)], ids=["some", "others"])
@pytest.mark.parametrize("kind", [kind if kind in QUICK else conformance(kind) for kind in KINDS])
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


@pytest.mark.conformance
@pytest.mark.parametrize("name", ["gpt2", "llama3", "bert", "transformer", "mixtral", "gpt_oss"])
def test_the_models_snippets_agree_with_the_libraries(name: str) -> None:
    file = ROOT / "rosettaformer" / "guide" / "snippets" / "models" / f"{name}.py"
    ran = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    errors = {line.split()[0]: float(line.split()[1]) for line in ran.stdout.splitlines()}
    assert set(errors) == {"numpy", *FRAMEWORKS}
    assert max(errors.values()) < 2e-6  # float32 logits of size 1, after two layers


def test_a_models_page_begins_with_its_tensors(guide: Path) -> None:
    for page in (guide / "models").glob("*.html"):
        if page.name != "index.html":
            order = re.findall(r'<h2 id="(\w+)">', page.read_text(encoding="utf-8"))
            entries = [] if page.name == "transformer.html" else ["entries"]
            assert order == ["tensors", "notes", *entries, "load", "choices", "pass"], page.name


def test_a_models_page_explains_every_key_of_its_config_json(guide: Path) -> None:
    for name, family in (("llama3", "llama"), ("gpt2", "gpt2"), ("bert", "bert"), ("mixtral", "mixtral"), ("gpt_oss", "gpt_oss")):
        rows, own = rows_of(guide, name), FAMILIES[family]
        joint = [key for each in own.joints for key in each.entries]
        assert [*rows] == [*(entry.name for entry in own.entries), *joint]
        for key, row in rows.items():  # decisive entries have a field with a linked page, and an affected component
            assert key in joint or ("components/config.html#" in row and len(re.findall("<td>", row)) == 5), key
    cells = {key: re.findall("<t[dh][^>]*>(.*?)</t[dh]>", row) for key, row in rows_of(guide, "llama3").items()}
    wanted = {"num_key_value_heads": "multi_head_attention 8", "rope_theta": "rotary_embedding 500000.0"}
    for key, words in wanted.items():
        component, value = words.split()
        assert f">{component}<" in cells[key][3] and cells[key][4].split()[0] == value, key


@pytest.mark.conformance
def test_the_tutorials_are_linked_from_where_readers_look_for_them(guide: Path) -> None:
    wanted = {
        "port-llama-flax": "index models/llama3 translate/pytorch-to-flax components/greedy_search",
        "port-llama": "models/llama3 translate/flax-to-pytorch-attention components/rotary_embedding",
        "port-bert": "models/bert translate/keras-to-pytorch components/encoder_layer",
    }
    for tutorial, pages in wanted.items():
        for page in pages.split():
            text = (guide / f"{page}.html").read_text(encoding="utf-8").partition("<main")[2]
            assert f"tutorials/{tutorial}.html" in text, (page, tutorial)


def rows_of(guide: Path, model: str) -> dict[str, str]:
    text = html.unescape((guide / "models" / f"{model}.html").read_text(encoding="utf-8"))
    return dict(re.findall(r'<tr id="key-(\w+)">(.*?)</tr>', text, re.DOTALL))


@pytest.mark.conformance
def test_a_models_table_holds_every_tensor_that_the_library_stores(guide: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch")
    llama = {"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8}
    with torch.device("meta"):
        models = {
            "bert": transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=1)),
            "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1)),
            "llama3": transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=1, **llama)),
            "gpt_oss": transformers.GptOssForCausalLM(transformers.GptOssConfig(num_hidden_layers=1, num_local_experts=32)),
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
