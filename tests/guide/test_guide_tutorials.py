"""The tutorials of the guide: whoever follows them sees what they show. `python tools/tutorials.py` records them anew."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import conformance
from session import masked
from tutorials import HOUSE, SNIPPETS, all_pages, every_page, followed, session

from rosettaformer.guide import site
from rosettaformer.guide.code import Code, highlighted
from rosettaformer.guide.site import Page
from rosettaformer.guide.tutorials import REPAIRED
from rosettaformer.guide.tutorials.documents import Document
from rosettaformer.guide.tutorials.session import Session, changed, regions
from rosettaformer.pages import environment

NEEDS = {
    "index": (),
    "port-pytorch": ("torch", "transformers"),
    "port-keras": ("tensorflow", "transformers"),
    "port-flax": ("flax", "transformers"),
    "port-bert": ("torch", "transformers", "keras_hub"),
    "port-llama": ("torch", "transformers"),
    "port-llama-flax": ("flax", "transformers"),
    "add-a-backend": (),
    "add-a-component": ("torch", "tensorflow", "flax"),
}
# the blocks of commands that the product test runs; all files are written and changed
SOME = {
    "port-pytorch": ("attention", "diagnose", "model", "folder", "convert", "compare"),
    "port-keras": (),
    "port-flax": (),
    "port-bert": ("pool_again", "folder", "convert", "compare", "from_keras"),
    "port-llama": ("rotation_again", "half_again"),
    "port-llama-flax": ("rotation_again", "folder", "compare"),
    "add-a-component": ("proof", "cases", "said", "defect"),
}
RUNS = [
    *(conformance(name, True) for name in NEEDS),
    *((name, False) for name in SOME if not SOME[name]),
]
# numbers that no run of ours tells: years, sections and versions of what is cited; defaults and limits of frameworks and dtypes
CITED = {"2017", "2018", "2019", "2021", "2024", "section 2.3", "section 3", "section 3.2"}
CITED |= {"Llama 2", "Llama 3", "Llama 3.1", "Qwen 3", "Gemma 2"}
CITED |= {"1e-3", "1e-5", "1e-6", "1e-12", "0.044715", "65504", "position 600", "601"}
WORD = "(?:one|two|three|four|five|six|seven|eight|nine|ten|dozens?|hundreds?|thousands?|millions?)"
COUNTED = "(?:questions?|cases?|cells?|mistakes?|times|passes)"
NUMBER = re.compile(
    rf"(?:(?:section|position|Llama|Qwen|Gemma) )?(?<![\w-])\d[\d.]*(?:e-?\d+)?(?<!\.)(?!\w)"
    rf"|\b{WORD}\b(?: \w+){{0,2}} {COUNTED}\b|\b{COUNTED} of {WORD}\b"
)
DURATION = re.compile(r"\bin [\d.]+ ?(s|min [\d.]+ s)\b( \([\d:]+\))?")


@pytest.mark.parametrize(("name", "full"), RUNS)
def test_what_a_page_shows_is_what_its_commands_print(name: str, full: bool, tmp_path: Path) -> None:
    for needed in NEEDS[name] if full or SOME[name] else ():
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    run = []
    for block, shown, now in followed(all_pages()[name], tmp_path, None if full else SOME[name]):
        assert masked(DURATION.sub("in # s", now)) == masked(DURATION.sub("in # s", shown)), block
        run.append(block)
        if block in ("compare", "from_keras"):
            assert float(now.split()[-1]) < 1e-5
    wanted = [step.name for step in session(all_pages()[name]).steps if step.kind == "run"]
    assert run == (wanted if full else [block for block in wanted if block in SOME[name]])


@pytest.mark.parametrize("name", [name for name in NEEDS if name.startswith("port-")])
def test_a_port_goes_from_red_to_green_in_every_component(name: str) -> None:
    shown = {step.name: step.text for step in session(all_pages()[name]).steps if step.kind == "run"}
    assert sum("FAILED:" in text for text in shown.values()) >= 2  # the mistake, and half precision or padding
    again = [block for block in shown if block.endswith("_again") or block in ("decode", "generation")]
    for last in ("ci", "checkpoint", "gradients", *again):
        assert "PASSED:" in shown[last] and "FAIL" not in shown[last], last
    gpt2 = name in ("port-pytorch", "port-keras", "port-flax")
    assert len(re.findall(r"^ \w+ +f32 ", shown["ci"], re.MULTILINE)) == (7 if gpt2 else 8)
    assert any(text.splitlines()[1].startswith("explained ") for block, text in shown.items() if block.startswith("diagnose"))


def test_every_snippet_is_on_a_page_and_pages_are_made_without_a_run() -> None:
    shown: dict[str, str] = {}
    for page in all_pages().values():
        taken = session(page)
        for step in taken.steps:
            name = step.name + {"run": ".console", "change": ".diff"}.get(step.kind, "")
            shown[f"{taken.folder}/{name}"] = shown.get(f"{taken.folder}/{name}", "") + step.text
    tools = ("__pycache__", ".ruff_cache")
    found = [file for file in SNIPPETS.rglob("*") if file.is_file() and file.name != "ruff.toml" and not {*file.parts} & {*tools}]
    files = {file.relative_to(SNIPPETS).as_posix(): file.read_text() for file in found}
    assert files.keys() == shown.keys()
    for name, text in files.items():
        whole = "".join(regions(text).values()) if "# region " in text else text
        assert sorted(shown[name].splitlines()) == sorted(whole.splitlines()), name
    pages = all_pages()
    assert pages.keys() == NEEDS.keys()
    assert all(page.section == "tutorials" and (HOUSE / "rosettaformer/guide/page" / page.template).is_file() for page in pages.values())


def templates(page: Page) -> str:
    """The text of a page's template and of those that it extends."""
    text, file = "", page.template
    while file != "site.html.jinja":
        own = (HOUSE / "rosettaformer/guide/page" / file).read_text(encoding="utf-8")
        text, base = text + own, re.search(r'{% extends "(.*?)" %}', own)
        file = base[1] if base else "site.html.jinja"
    return text


def typed(text: str) -> set[str]:
    """The numbers that stand in the prose of a template: not those that it quotes, nor those in code, headings and links."""
    prose = re.sub(r"{{.*?}}|{%.*?%}|<code>.*?</code>|<h2.*?</h2>|<a .*?</a>", "", text, flags=re.DOTALL)
    return {found[0] for found in NUMBER.finditer(" ".join(re.sub(r"<[^>]*>", " ", prose).split()))}


@pytest.mark.parametrize("name", all_pages())
def test_a_number_in_prose_is_quoted_from_an_output_or_cited(name: str) -> None:
    assert typed("<p>And it is red, in one\nquestion of eight, and 3 of 7 fail.</p>") == {"one question", "3", "7"}
    assert typed(templates(all_pages()[name])) <= CITED


EXTENDING = ("dtypes", "cache", "tanh")  # changes of what was right before


def rendered(page: Page) -> str:
    """The page, with the origins of its blocks of code in their places."""
    around = {"page": page, "pages": [], "sections": {}, "about": {}, "code": lambda code: f"[{code.origin}]", "to": lambda path: path}
    return environment(site.__package__).get_template(page.template).render(around | dict(page.values))


@pytest.mark.parametrize("name", [name for name in NEEDS if name.startswith("port-")])
def test_what_is_wrong_at_first_says_where_it_is_repaired_and_the_whole_files_are_shown(name: str) -> None:
    page = all_pages()[name]
    parts = {part.partition('"')[0]: part for part in rendered(page).split('<h2 id="')[1:]}
    taken = session(page)
    found: dict[str, list[str]] = {}
    for change in (step for step in taken.steps if step.kind == "change" and step.name not in EXTENDING):
        file = change.text.partition("--- a/")[2].partition("\n")[0]
        removed = {line[1:] for line in change.text.splitlines() if re.match(r"-[^-\n]", line)}
        regions_of = regions((SNIPPETS / taken.folder / file).read_text())
        (place,) = (region for region, text in regions_of.items() if removed <= {*text.splitlines()})
        section = next(id for id, part in parts.items() if f"/{change.name}.diff]" in part)
        found.setdefault(f"{file}#{place}", []).append(section)
    assert {place: tuple(sections) for place, sections in found.items()} == REPAIRED[taken.folder]
    model = next(iter(found)).partition("#")[0].replace("port.py", "gpt2.py")
    last = parts["keras" if name == "port-bert" else "weights"]
    assert f"/{model}#final]" in last and "/port.py#final]" in last
    shown = page.values["session"].add(*next(iter(found)).split("#"))
    assert 'wrong as it stands: repaired in <a href="#' in highlighted(shown)


def test_what_a_console_says_of_what_is_not_covered_is_marked_to_be_folded_and_a_change_must_fit() -> None:
    said = "$ x\n" + "port.py: not covered a (1)\n" * 4 + "4 compared\n"
    shown = highlighted(Code(said, "", "console"))
    assert '<span class="folded"><span class="go">port.py' in shown and '</span>\n</span><span class="go">4 compared' in shown
    assert "folded" not in highlighted(Code(said.replace("port.py: not covered a (1)\n", "", 1), "", "console"))
    assert changed("a\nb\n", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "f") == "a\nc\n"
    with pytest.raises(ValueError, match="lines once in f; got 0 times"):
        changed("a\n", "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-b\n+c\n", "f")


LOADED = """
from pathlib import Path

import jax, jax.numpy as jnp, llama, load, numpy as np, torch, transformers
from flax import nnx

sizes = {"vocab_size": 101, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4}
kinds = {
    "one file": ({"num_key_value_heads": 2}, torch.float32, "1GB"),
    "shards": ({"num_key_value_heads": 2}, torch.float32, "60KB"),
    "tied": ({"num_key_value_heads": 4, "tie_word_embeddings": True}, torch.float32, "1GB"),
    "bfloat16": ({"num_key_value_heads": 1, "head_dim": 8}, torch.bfloat16, "1GB"),
}
ids = np.arange(20)[None] * 7 % 101
for kind, (more, dtype, size) in kinds.items():
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **more)).to(dtype)
    theirs.save_pretrained(kind, max_shard_size=size)
    with torch.inference_mode():
        wanted = theirs.float()(torch.from_numpy(ids)).logits.numpy()
    c = load.config(kind)
    for own in (jnp.float32, jnp.bfloat16):
        model = load.filled(lambda: llama.Llama(c, own, nnx.Rngs(0)), kind)
        assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))} == {jnp.dtype(own)}, kind
        if own == jnp.float32:
            np.testing.assert_allclose(model(ids), wanted, atol=1e-5, err_msg=kind)
traces, call = [], llama.Stack.__call__
llama.Stack.__call__ = lambda *rest: traces.append(1) or call(*rest)
llama.generate(model, jnp.asarray(ids), 1000, 6)
llama.generate(model, jnp.asarray(ids), 1000, 6)
print(sorted(path.name for path in Path("shards").glob("*.safetensors"))[-1], len(traces))
"""


@pytest.mark.conformance
def test_llama_in_flax_loads_what_the_library_writes_and_compiles_two_programs_to_generate(tmp_path: Path) -> None:
    """One file and several, a tied head, half precision; one program for the prompt, and one for all tokens after it."""
    for needed in NEEDS["port-llama-flax"]:
        pytest.importorskip(needed)
    list(followed(all_pages()["port-llama-flax"], tmp_path, ()))
    (tmp_path / "loaded.py").write_text(LOADED)
    ran = subprocess.run([sys.executable, "loaded.py"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(r"model-0000[2-9]-of-.*safetensors 2", ran.stdout.splitlines()[-1]), ran.stdout


def test_a_quote_is_the_text_of_an_output_and_no_other() -> None:
    red = Session("port_flax")
    assert red.quote("parts", r"layer_norm +f64 .*FAIL (\d+/\d+)") in (SNIPPETS / "port_flax" / "parts.console").read_text()
    for pattern, found in ((r"layer_norm +f16 (.*)", "none"), (r"(\d+/\d+)", "9")):
        with pytest.raises(ValueError, match=rf"must find one text in port_flax/parts.console; got .*{found}"):
            red.quote("parts", pattern)


@pytest.mark.parametrize("file", ["ports.md", "diagnosis.md"])
def test_a_document_is_that_of_the_docs_and_has_all_its_sections(file: str) -> None:
    assert (HOUSE / "rosettaformer/guide" / file).resolve() == HOUSE / "docs" / file
    document = Document(file, {"ports.md": "the-port-file.html"})
    text = (HOUSE / "docs" / file).read_text(encoding="utf-8")
    assert [heading for heading, _ in document.headings] == [line[3:].replace("`", "") for line in text.splitlines() if line[:3] == "## "]
    assert all(f'<h2 id="{fragment}">' in document.body for _, fragment in document.headings)
    indented = re.findall(r"(?:^    .*\n)+", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    assert document.body.count("<figure") == text.count("```python") + len(indented)
    assert set(re.findall(r'href="([^"]*)"', document.body)) == ({"the-port-file.html"} if file == "diagnosis.md" else set())


def test_the_search_knows_headings_and_commands_by_their_fragments() -> None:
    for name, page in every_page().items():
        text = templates(page) + getattr(page.values.get("document"), "body", "")
        assert {name[1][1:] for name in page.names if not isinstance(name, str)} <= set(re.findall(r' id="([^"]+)"', text)), name
    assert ("Many heads", "#heads") in every_page()["port-keras"].names
