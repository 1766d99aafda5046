"""The tutorials of the guide: following them gives the promised results, step by step."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import conformance
from tutorials import HOUSE, SNIPPETS, all_pages, change, every_page, followed, run, session

from rosettaformer.common.pages import environment
from rosettaformer.guide import evidence, site
from rosettaformer.guide.build import Run
from rosettaformer.guide.code import Code, highlighted
from rosettaformer.guide.site import Page
from rosettaformer.guide.tutorials import REPAIRED
from rosettaformer.guide.tutorials.documents import Document
from rosettaformer.guide.tutorials.session import Session, Step, changed, regions
from rosettaformer.judge.summary import Summary

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
# the product test runs no commands, but writes and changes all files
RUNS = [*(conformance(name, True) for name in NEEDS), ("port-keras", False), ("port-flax", False)]


@pytest.mark.parametrize(("name", "full"), RUNS)
def test_the_commands_of_a_page_end_and_name_bugs_as_it_says(name: str, full: bool, tmp_path: Path) -> None:
    for needed in NEEDS[name] if full else ():
        pytest.importorskip(needed)
    run = []
    for step, console in followed(all_pages()[name], tmp_path, None if full else ()):
        run.append(step.name)
        if step.name in ("compare", "from_keras"):
            assert float(console.split()[-1]) < 1e-5
    wanted = [step.name for step in session(all_pages()[name]).steps if step.kind == "run"]
    assert run == (wanted if full else [])


@pytest.mark.parametrize("name", [name for name in NEEDS if name.startswith("port-")])
def test_a_port_goes_from_red_to_green_in_every_component(name: str) -> None:
    codes = {step.name: step.code for step in session(all_pages()[name]).steps if step.kind == "run"}
    bugs = [step.bug for step in session(all_pages()[name]).steps if step.bug]
    again = [block for block in codes if block.endswith("_again") or block in ("decode", "generation")]
    assert not any(codes[block] for block in ("ci", "checkpoint", "gradients", *again))
    assert bugs and sum(codes.values()) - len(bugs) >= 2  # checks: the bug, and half precision or padding


def test_every_snippet_is_on_a_page_and_pages_are_made_without_a_run() -> None:
    shown: dict[str, str] = {}
    for page in all_pages().values():
        taken = session(page)
        assert {step.name for step in taken.steps if step.kind == "run"} == taken.blocks.keys()
        for step in taken.steps:
            if step.kind == "run":
                continue
            name = step.name + {"change": ".diff"}.get(step.kind, "")
            shown[f"{taken.folder}/{name}"] = shown.get(f"{taken.folder}/{name}", "") + step.text
    tools, apart = ("__pycache__", ".ruff_cache"), ("ruff.toml", "commands.toml")
    found = [file for file in SNIPPETS.rglob("*") if file.is_file() and file.name not in apart and not {*file.parts} & {*tools}]
    files = {file.relative_to(SNIPPETS).as_posix(): file.read_text() for file in found}
    assert files.keys() == shown.keys()
    for name, text in files.items():
        whole = "".join(regions(text).values()) if "# region " in text else text
        assert sorted(shown[name].splitlines()) == sorted(whole.splitlines()), name
    pages = all_pages()
    assert pages.keys() == NEEDS.keys()
    assert all(page.section == "tutorials" and (HOUSE / "rosettaformer/guide/page" / page.template).is_file() for page in pages.values())


def templates(page: Page) -> str:
    """Returns the text of a page's template and of its parents."""
    text, file = "", page.template
    while file != "site.html.jinja":
        own = (HOUSE / "rosettaformer/guide/page" / file).read_text(encoding="utf-8")
        text, base = text + own, re.search(r'{% extends "(.*?)" %}', own)
        file = base[1] if base else "site.html.jinja"
    return text


EXTENDING = ("dtypes", "cache", "tanh")  # changes of correct code


def rendered(page: Page) -> str:
    """Returns the page, with the origins of its code blocks in place."""
    around = {"page": page, "pages": [], "page_paths": [], "sections": {}, "about": {}}
    around |= {"code": lambda code: f"[{code.origin}]", "to": lambda path: path}
    return environment(site.__package__).get_template(page.template).render(around | dict(page.values))


@pytest.mark.parametrize("name", [name for name in NEEDS if name.startswith("port-")])
def test_what_is_wrong_at_first_says_where_it_is_repaired_and_the_whole_files_are_shown(name: str) -> None:
    page = all_pages()[name]
    parts = {part.partition('"')[0]: part for part in rendered(page).split('<h2 id="')[1:]}
    taken = session(page)
    found: dict[str, list[str]] = {}
    for one in (step for step in taken.steps if step.kind == "change" and step.name not in EXTENDING):
        file = one.text.partition("--- a/")[2].partition("\n")[0]
        removed = {line[1:] for line in one.text.splitlines() if re.match(r"-[^-\n]", line)}
        regions_of = regions((SNIPPETS / taken.folder / file).read_text())
        (place,) = (region for region, text in regions_of.items() if removed <= {*text.splitlines()})
        section = next(id for id, part in parts.items() if f"/{one.name}.diff]" in part)
        found.setdefault(f"{file}#{place}", []).append(section)
    assert {place: tuple(sections) for place, sections in found.items()} == REPAIRED[taken.folder]
    model = next(iter(found)).partition("#")[0].replace("port.py", "gpt2.py")
    last = parts["keras" if name == "port-bert" else "weights"]
    assert f"/{model}#final]" in last and "/port.py#final]" in last
    shown = page.values["session"].add(*next(iter(found)).split("#"))
    assert 'href="#' in highlighted(shown)


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
    """Several files, a tied head, half precision; one program for the prompt, and one for the following tokens."""
    for needed in NEEDS["port-llama-flax"]:
        pytest.importorskip(needed)
    list(followed(all_pages()["port-llama-flax"], tmp_path, ()))
    (tmp_path / "loaded.py").write_text(LOADED)
    ran = subprocess.run([sys.executable, "loaded.py"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(r"model-0000[2-9]-of-.*safetensors 2", ran.stdout.splitlines()[-1]), ran.stdout


def test_a_recorded_console_is_shown_if_it_is_of_the_same_commands(tmp_path: Path) -> None:
    plain = Session("start")
    assert plain.run("check").text == "$ rosettaformer check my_port.py --component layer_norm\n" and not plain.recorded
    (tmp_path / "check.console").write_text("$ rosettaformer check my_port.py --component layer_norm\nFAILED\n")
    (tmp_path / "diagnose.console").write_text("$ rosettaformer diagnose other.py\n")
    built = Session("start", consoles=tmp_path)
    assert built.run("check").text.endswith("FAILED\n") and not built.recorded
    assert built.run("diagnose").text == "$ rosettaformer diagnose my_port.py\n"
    (tmp_path / "diagnose.console").write_text("$ rosettaformer diagnose my_port.py\n")
    assert built.recorded


def test_what_is_built_is_shown_and_nothing_without_it(tmp_path: Path) -> None:
    assert [*evidence.pages(Run(Summary([]), evidence=None))] == [*evidence.pages(Run(Summary([]), evidence=tmp_path))] == []
    for name in ("wild", "wild.part", "tutorial-index"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "made.json").write_text('{"title": "Unseen bugs", "revision": "abc", "date": "2026-01-02"}')
    (tmp_path / "wild" / "wild.md").write_text("# Bugs\n\nText.\n\n| a |\n|---|\n| b |\n")
    made = [*evidence.pages(Run(Summary([]), evidence=tmp_path))]
    assert [page.path for page in made] == ["evidence/index.html", "evidence/wild.html"]
    index, page = map(rendered, made)
    assert 'href="evidence/wild.html"' in index and "tutorial-index" in index and "wild.part" not in index
    assert "abc" in page and "<td>b</td>" in page


@pytest.mark.conformance
def test_a_step_that_ends_otherwise_or_names_another_bug_is_told(tmp_path: Path) -> None:
    page = all_pages()["index"]
    for step in (step for step in session(page).steps if step.kind == "add"):
        change(step, tmp_path)
    wrong = Step("run", "check", "rosettaformer check my_port.py --component layer_norm", 0)
    other = Step("run", "diagnose", "rosettaformer diagnose my_port.py", 1, "NRM2")
    for step, said in ((wrong, "exit code 1, expected 0"), (other, "NRM2 is not named")):
        with pytest.raises(ValueError, match=said):
            run(step, tmp_path)


@pytest.mark.parametrize("file", ["ports.md", "diagnosis.md"])
def test_a_document_is_that_of_the_docs_and_has_all_its_sections(file: str) -> None:
    assert (HOUSE / "rosettaformer/guide" / file).resolve() == HOUSE / "docs" / file
    document = Document.of_package(file, {"ports.md": "the-port-file.html"})
    text = (HOUSE / "docs" / file).read_text(encoding="utf-8")
    assert [heading for heading, _ in document.headings] == [line[3:].replace("`", "") for line in text.splitlines() if line[:3] == "## "]
    assert all(f'<h2 id="{fragment}">' in document.body for _, fragment in document.headings)
    indented = re.findall(r"(?:^    .*\n)+", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    assert document.body.count("<figure") == text.count("\n```") // 2 + len(indented)
    within = {f"#{fragment}" for _, fragment in document.headings}
    assert set(re.findall(r'href="([^"]*)"', document.body)) - within == ({"the-port-file.html"} if file == "diagnosis.md" else set())


def test_the_search_knows_headings_and_commands_by_their_fragments() -> None:
    for name, page in every_page().items():
        text = templates(page) + getattr(page.values.get("document"), "body", "")
        assert {name[1][1:] for name in page.names if not isinstance(name, str)} <= set(re.findall(r' id="([^"]+)"', text)), name
    assert ("Many heads", "#heads") in every_page()["port-keras"].names
