"""The pages of components: equations parse, sources are complete and in order, figures and names are true."""

import ast
import dataclasses
import html
import importlib
import inspect
import re
from collections import Counter
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from browser import offline, wide
from expectations import suite
from kinds import conformance
from made_up_run import made_up

from reference_numpy import TransformerConfig, layout
from rosettaformer.guide import components
from rosettaformer.guide.components import equations, facts, prose, sites
from rosettaformer.guide.components.alignment import aligned, orders
from rosettaformer.guide.components.component_arguments import arguments, cases_of, errors, letters_of
from rosettaformer.guide.components.config_fields import fields, fields_of
from rosettaformer.guide.components.decisions import decisions, governing
from rosettaformer.guide.components.modules import PACKAGES, read
from rosettaformer.guide.components.names import Stock, full_name, stock
from rosettaformer.guide.components.sources import Block, source
from rosettaformer.guide.translation import snippets
from rosettaformer.judge.components import DECLARED
from rosettaformer.judge.expectation.components import OWN, VJP, function_of
from rosettaformer.judge.suite import all_cases

HOUSE = Path(__file__).resolve().parents[2]
FORWARD = tuple(name for name in OWN if not name.endswith(VJP))
pytestmark = pytest.mark.xdist_group("guide")  # measured and built once
MATH = {symbol: name for name, symbol in equations.GREEK.items()} | {"∑": "sum", "^": "hat"}


def spans() -> dict[str, str]:
    found = {}
    for component in OWN:
        for package in PACKAGES[: 1 if component.endswith(VJP) else 4]:
            for span in re.findall(r"`([^`]+)`", source(component, package).docstring):
                if equations.kind(text := " ".join(span.split())) == "equation":
                    found[text] = f"{package}: {component}"
    return found


def test_every_equation_is_well_formed_mathml_with_all_of_its_names() -> None:
    found = spans()
    assert len(found) > 60
    for text, where in found.items():
        tree = ElementTree.fromstring(equations.mathml(text, block=True))
        shown = tree.find("semantics/mrow")
        assert shown is not None and tree.findtext("semantics/annotation") == text
        leaves = [MATH.get(node.text or "", node.text or "") for node in shown.iter() if node.tag in ("mi", "mn", "mo")]
        leaves += ["sqrt"] * len(list(shown.iter("msqrt")))
        wanted = Counter("".join(re.findall(r"[A-Za-z0-9.]+", text.replace("...", ""))))
        assert Counter("".join(re.findall(r"[A-Za-z0-9.]+", "".join(leaves)))) == wanted, where


@pytest.mark.parametrize(
    ("text", "markup"),
    [
        ("x/2 y", "<mfrac><mi>x</mi><mn>2</mn></mfrac><mo"),  # half of x times y
        ("x y / 2", "<mfrac><mrow><mi>x</mi><mo"),
        ("(a + b) / 2", "<mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mn>2</mn></mfrac>"),  # the bar replaces brackets
        ("W_i^Q", "<msubsup><mi>W</mi><mi>i</mi><mi>Q</mi></msubsup>"),
        ("d^-1/2", "<msup><mi>d</mi><mrow>"),
        ("sqrt(d)^scale", "<msup><msqrt>"),
        ("sum_bt x", "<munder>"),
        ("m_hat", '<mover accent="true"><mi>m</mi>'),
    ],
)
def test_what_binds_how_tightly(text: str, markup: str) -> None:
    assert markup in equations.mathml(text)


@pytest.mark.parametrize("text", ["x +", "(x", "x ) y", "a, b", "x # y", "", "f(x"])
def test_what_is_no_equation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        equations.mathml(text)


def left_out(block: Block) -> set[int]:
    first, last = block.lines
    return {*range(first, last + 1)} - {line for piece in block.pieces for line in range(piece.first, piece.last + 1)}


@pytest.mark.parametrize("component", FORWARD)
def test_the_rows_hold_every_statement_of_each_source_once_and_in_order(component: str) -> None:
    sources = [source(component, package) for package in PACKAGES]
    rows = aligned(sources, component)
    assert all(any(row) for row in rows)
    for index, one in enumerate(sources):
        column = tuple(row[index] for row in rows if row[index])
        assert column in orders(one)
        assert sorted(map(id, column)) == sorted(id(piece) for block in one.blocks for piece in block.pieces)
        for block in one.blocks:
            text = [line for piece in column if piece and piece.symbol == block.symbol for line in piece.lines]
            file = read(*block.symbol[:2])
            missing, (first, last) = left_out(block), block.lines
            assert text == [file.lines[line - 1] for line in range(first, last + 1) if line not in missing]
            nodes = [file.definitions[block.symbol.name], *file.definitions.values()]
            hidden = {line for node in nodes[:1] for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
            hidden |= {line for name, node in file.definitions.items() if name.rpartition(".")[2] in OWN
                       for line in range(node.lineno - len(node.decorator_list), (node.end_lineno or 0) + 1)}  # fmt: skip
            assert all(line in hidden or not file.lines[line - 1].strip() for line in missing), block.symbol


def test_statements_of_one_meaning_stand_in_one_row_and_prose_keeps_terms_in_the_line() -> None:
    rows = aligned([source("layer_norm", package) for package in PACKAGES], "layer_norm")
    texts = [[piece.text.split("=")[0].strip() if piece else "" for piece in row] for row in rows]
    assert ["", "", "variance_bt1", "variance_bt1"] in texts and ["wide_btd", "wide", "wide_btd", "wide_btd"] in texts
    heads = [[getattr(piece.node, "name", "") if piece else "" for piece in row] for row in rows]
    assert ["layer_norm", "forward", "call", "__call__"] in heads and ["", "LayerNorm", "LayerNorm", "LayerNorm"] in heads
    text = prose.paragraphs("Where `y = x / 2`, of `b t d`, as `softmax`: `x / 2` < 1. Source: a paper.", lambda name: "softmax.html")
    assert text.count('<div class="equation">') == 1
    assert '<code class="axes" title="batch, target position, model width">b t d</code>' in text
    assert '<a href="softmax.html"><code>softmax</code></a>' in text and "&lt; 1" in text
    assert '<p class="reference">Source: a paper.</p>' in text


def test_every_component_belongs_to_one_group_and_every_decision_governs_one() -> None:
    assert sorted(components.ORDER) == sorted(FORWARD)
    assert (HOUSE / "rosettaformer/guide/decisions.md").resolve() == HOUSE / "docs/decisions.md"
    assert {id for component in FORWARD for id in governing(component)} == set(decisions())


@pytest.mark.parametrize("framework", ["torch", "tf", "jax"])
def test_what_frameworks_have_exists_with_these_defaults(framework: str) -> None:
    for component, entries in stock().items():
        assert component in OWN
        for entry in (entry for entry in entries if entry.framework == framework):
            found = resolve_name(full_name(entry.name))
            signature = inspect.signature(found.__init__ if inspect.isclass(found) else found) if entry.defaults else None
            for name, value in entry.defaults.items():
                assert signature is not None and repr(signature.parameters[name].default) == value, (entry.name, name)


@pytest.mark.parametrize("framework", ["torch", "tf", conformance("jax")])
def test_what_is_said_of_what_frameworks_have_holds(framework: str) -> None:
    column = {"torch": "pytorch", "tf": "keras", "jax": "flax"}[framework]
    names = snippets.namespace("numpy") | snippets.namespace(column)
    for component, entries in stock().items():
        for entry in (entry for entry in entries if entry.framework == framework):
            assert entry.claims, f"{component}: {entry.name}"
            assert list(snippets.refuted(entry.claims, dict(names), f"{component}.{entry.name}")) == []


SIZES = {"b": 2, "t": 3, "s": 3, "d": 12, "h": 3, "g": 3, "k": 4, "e": 4, "f": 7, "v": 11, "p": 8, "a": 2}


def parameters_of_a_layer(entry: Stock, component: str) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a stock layer's parameters by native name, at the sizes SIZES."""
    made = resolve_name(full_name(entry.name))
    rows = SIZES[entry.parameters["table"][1][0]] if "table" in entry.parameters else 0
    out = SIZES["f"] if component == "feed_forward" else SIZES["v"]
    if entry.framework == "torch":
        given = {"nn.Embedding": (rows, 12), "nn.LayerNorm": (12,), "nn.RMSNorm": (12,), "nn.Linear": (12, out),
                 "nn.MultiheadAttention": (12, 3)}[entry.name]  # fmt: skip
        return {name: tuple(tensor.shape) for name, tensor in made(*given).named_parameters()}
    if entry.framework == "tf":
        short = entry.name.rpartition(".")[2]
        layer = made(*{"Embedding": (rows, 12), "Dense": (out,), "MultiHeadAttention": (3, 4)}.get(short, ()))
        layer.build(*[(2, 3, 12)] * (2 if short == "MultiHeadAttention" else 1))
        return {variable.path.split("/", 1)[1]: tuple(variable.shape) for variable in layer.trainable_variables}
    from flax import nnx

    given = {"nnx.Embed": (rows, 12), "nnx.Linear": (12, out), "nnx.MultiHeadAttention": (3, 12)}.get(entry.name, (12,))
    options = {"decode": False} if entry.name == "nnx.MultiHeadAttention" else {}
    state = nnx.to_flat_state(nnx.state(made(*given, rngs=nnx.Rngs(0), **options), nnx.Param))
    return {".".join(map(str, path)): tuple(value.shape) for path, value in state}


@pytest.mark.parametrize("framework", ["torch", "tf", "jax"])
def test_the_parameters_of_stock_layers_have_these_names_and_axes(framework: str) -> None:
    for component, entries in stock().items():
        for entry in (entry for entry in entries if entry.framework == framework and entry.parameters):
            shapes = parameters_of_a_layer(entry, component)
            first = {name: pair for name, pair in entry.parameters.items() if not (component == "feed_forward" and "output" in name)}
            for name, (native, axes) in first.items():
                wanted = layout.shape(axes, SIZES)
                assert shapes[native] == wanted, (entry.name, name)
            assert {native for native, _ in first.values()} == set(shapes), entry.name


@pytest.mark.parametrize("port", ["torch", "tf", "jax"])
def test_the_weight_tables_are_the_ports_own(port: str) -> None:
    assert facts.table(port) == importlib.import_module(f"impl_{port}.weights").TABLE


def test_the_figures_are_those_of_the_run() -> None:
    summary = made_up().summary
    found = facts.figures(summary, "layer_norm")
    assert [(one.dtype, one.port) for one in found] == [(d, p) for d in ("float64", "float32") for p in ("torch", "tf", "jax")]
    for one in found:
        cell = summary.cell(("layer_norm", one.dtype), (one.port, "eager", "cpu"))
        assert (one.passed, one.compared, one.ratio, one.noise) == (cell.passed, cell.compared, cell.ratio, 2e-7)
    assert found[0].share == round(100 * 1.5 / 4)
    assert facts.figures(summary, "dropout") == []


def test_every_argument_and_field_has_the_meaning_of_what_it_is_handed_on_to() -> None:
    attention = {one.name: one for one in arguments("scaled_dot_product_attention")}
    assert attention["query_bthk"].axes == "batch, target position, query head, key size"
    assert attention["dropout_rate"].default == "0.0"
    assert errors("softmax")[0].startswith("Raises ValueError")
    assert [(component, one.name) for component in OWN for one in arguments(component) if not one.meaning] == []
    assert [name for name, one in fields().items() if not (one.meaning and one.must)] == []
    assert set(fields()) == {one.name for one in dataclasses.fields(TransformerConfig)}
    found = {one.name: one for one in arguments("multi_head_attention")}
    for name in ("mask_bhts", "bias_bhts", "causal", "keep_bhts"):
        assert found[name].meaning == attention[name].meaning
    assert found["dropout_rate"].field == "attention_dropout_rate"
    assert {one.name: one for one in arguments("noam")}["width"].meaning == "d"


ARRAY, FLOAT = np.ndarray | None, float


@pytest.mark.parametrize(
    ("name", "annotation", "letters"),
    [
        ("x_btd", ARRAY, "b t d"), ("mask_bhts", ARRAY, "b h t s"), ("pooled_br", ARRAY, "b r"), ("uniform_b", ARRAY, "b"),
        ("dropout_rate", FLOAT, ""), ("learning_rate", FLOAT, ""), ("n_best", int, ""), ("top_p", FLOAT, ""),
        ("beta_1", FLOAT, ""), ("return_weights", bool, ""), ("first_moment", ARRAY, ""), ("source", ARRAY, ""), ("x", ARRAY, ""),
    ],
)  # fmt: skip
def test_the_end_of_an_array_s_name_alone_are_its_axes(name: str, annotation: object, letters: str) -> None:
    assert letters_of(name, annotation) == letters


def test_fields_cases_and_axes_of_a_component_are_told() -> None:
    names = {component: {one.name for one in fields_of(component)} for component in FORWARD}
    norm = {"model_width", "epsilon", "norm_offset", "norm_one_plus_scale", "norm_cast_before_scale"}
    assert names["layer_norm"] == names["rms_norm"] == norm
    assert "final_norm" in names["encoder"] - names["encoder_layer"]
    assert {name for name in fields() if not any(name in one for one in names.values())} == set()
    every = [case for case in all_cases(grad=True) if case.component == "multi_head_attention"]
    found = cases_of()["multi_head_attention"]
    assert (found.core, found.all) == (sum(case.core for case in every), len(every))
    assert {"query_btd", "memory_bsd"} <= {*found.given} and "dropout_rate" not in found.given
    found = {one.name: one for one in facts.parameters_of("multi_head_attention")}
    assert found["query.kernel"].ports["torch"].change == "transposed and folded"
    assert found["query.kernel"].ports["jax"].change == "as it is"
    packed = found["key.kernel"].stock["nn.MultiheadAttention"]
    assert packed is not None and packed.change == "transposed and stacked and folded"


def test_every_component_says_what_it_is_for_before_its_equation(guide: Path) -> None:
    for component in components.ORDER:
        assert re.fullmatch(r"[A-Z][^.]{20,140}\.", DECLARED[component].purpose), component
        text = (guide / "components" / f"{component}.html").read_text(encoding="utf-8")
        assert 0 < text.index('class="lead purpose"') < text.find('<div class="about">'), component


def test_every_component_has_its_page_without_markup_as_text(guide: Path) -> None:
    for component in FORWARD:
        assert 'id="source"' in (guide / f"components/{component}.html").read_text(encoding="utf-8")
    page = ElementTree.fromstring(
        "<a>" + re.findall(r'(?s)id="compare">.*?(<tbody>.*?</tbody>)', (guide / "components/layer_norm.html").read_text())[0] + "</a>"
    )
    shown = ["".join(cell.itertext()) for cell in page.iter("td") if cell.get("data-column") == "impl_jax"]
    tree = ast.parse("".join(shown))
    assert [ast.unparse(part).partition(":")[0] for part in tree.body] == ["class LayerNorm(Norm)", "class Norm(nnx.Module)"]
    for file in (guide / "components").glob("*.html"):
        text = html.unescape(re.sub("<[^>]+>", "", file.read_text(encoding="utf-8")))
        assert not re.search(r"</?span|class=\"\w+\"", text), file.name


def test_native_names_find_their_component(index: dict[str, set[tuple[str, str]]]) -> None:
    for name, component in {
        "nn.LayerNorm": "layer_norm", "keras.layers.LayerNormalization": "layer_norm", "nnx.LayerNorm": "layer_norm",
        "F.scaled_dot_product_attention": "scaled_dot_product_attention", "torch.nn.MultiheadAttention": "multi_head_attention",
        "optax.adamw": "adam", "F.layer_norm": "layer_norm",
    }.items():  # fmt: skip
        assert (name, "#framework") in index[f"components/{component}.html"]
    assert ("tf.math.rsqrt", "#source") in index["components/layer_norm.html"]
    assert {("keep_bhts", "#arguments"), ("return_weights", "#arguments")} <= index["components/multi_head_attention.html"]
    assert {("query_key_value_bias", "#config"), ("norm_placement", "#config")} <= index["components/encoder_layer.html"]
    assert ("key_value_heads", "#key_value_heads") in index["components/config.html"]


@pytest.mark.conformance
def test_no_equation_is_cut_off(guide: Path) -> None:
    script = """return [...document.querySelectorAll(".equation > math")].filter(math => {
      const box = math.parentElement, leaves = [...math.querySelectorAll("mi, mo, mn")];
      box.scrollLeft = box.scrollWidth;
      const right = box.getBoundingClientRect().right;
      return leaves.some(leaf => leaf.getBoundingClientRect().right > right - 2) || getComputedStyle(math).overflowX != "visible";
    }).length"""
    with offline() as driver:
        for width in (1440, 500, 390):
            with wide(driver, width):
                for component in ("layer_norm", "multi_head_attention", "adam"):
                    driver.get((guide / f"components/{component}.html").as_uri())
                    assert driver.execute_script(script) == 0, (component, width)


def visible(driver: Any) -> list[str]:
    return [cell.get_attribute("data-column") for cell in driver.find_elements("css selector", "#compare thead th") if cell.is_displayed()]


def test_columns_are_chosen_and_tabs_are_walked_by_keyboard(guide: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    with offline() as driver:
        page = (guide / "components/layer_norm.html").as_uri()
        with wide(driver, 1800):
            driver.get(page)
            assert visible(driver) == list(PACKAGES)
        with wide(driver, 1440):  # four columns would wrap most lines, so the reference is hidden until a key shows it, and then stays
            driver.get(page)
            assert visible(driver) == list(PACKAGES[1:])
            driver.find_element("css selector", "input[name=reference_numpy]").send_keys(Keys.SPACE)
            assert visible(driver) == list(PACKAGES)
            driver.find_element("css selector", "input[name=impl_tf]").send_keys(Keys.SPACE)
            assert visible(driver) == [package for package in PACKAGES if package != "impl_tf"]
            assert not [
                row for row in driver.find_elements("css selector", "#compare tbody tr") if row.is_displayed() and not row.text.strip()
            ]
            driver.get((guide / "components/softmax.html").as_uri())  # the choice is kept
            assert visible(driver) == [package for package in PACKAGES if package != "impl_tf"]
        with wide(driver, 390):
            driver.get(page)
            assert visible(driver) == ["reference_numpy"]
            driver.find_element("css selector", "[role=tab][aria-selected=true]").send_keys(Keys.ARROW_RIGHT)
            assert visible(driver) == ["impl_torch"] and driver.switch_to.active_element.text == "PyTorch"
            driver.get((guide / "components/softmax.html").as_uri())
            assert visible(driver) == ["impl_torch"]
            for component in ("softmax", "adam", "multi_head_attention", "index", "config"):
                driver.get((guide / f"components/{component}.html").as_uri())
                assert driver.execute_script("return document.documentElement.scrollWidth") <= 390, component
        assert driver.get_log("browser") == []


def test_every_mask_of_the_cases_is_at_a_site_with_its_axes_and_its_rate() -> None:
    above = {"encoder": "encoder.", "decoder": "decoder.", "encoder_layer": "encoder.layers.N.", "decoder_layer": "decoder.layers.N."}
    table, seen = {one.path: one for one in sites.all_sites()}, set()
    for case in suite():
        for name, mask in case.inputs.items():
            if name.startswith("keep.") and case.component != "random_dropout":
                path = above.get(case.component, "") + re.sub(r"\.\d+\.", ".N.", name.removeprefix("keep."))
                sizes = [case.config.sizes.get(letter, size) for letter, size in zip(table[path].letters.split(), mask.shape, strict=True)]
                assert tuple(sizes) == mask.shape, case.id
                seen.add(path)
    assert seen == table.keys()
    for one in sites.all_sites():
        assert one.argument in inspect.signature(function_of(one.component)).parameters
        assert one.field in OWN[one.component].arguments.values()
        assert one.layer == "" or one.path.endswith(f".layers.N.{one.layer}")
