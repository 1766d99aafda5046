"""The plain versions of components: judged as ports, parallel in all frameworks, and short; and the rest of their pages."""

import ast
import contextlib
import html
import importlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import expectations
import numpy as np
import pytest
from in_process import InProcess

from rosettaformer.guide import figures
from rosettaformer.guide.components import ORDER, plain, prose
from rosettaformer.guide.components.modules import PACKAGES
from rosettaformer.judge import runner
from rosettaformer.judge.case import Case
from rosettaformer.judge.ports import session
from rosettaformer.judge.status import Status

FOLDER = Path(plain.__file__).parents[1] / "snippets" / "components"
FRAMEWORKS = ("numpy", "pytorch", "keras", "flax")
WITH = tuple(component for component in ORDER if plain.functions(component))


@contextlib.contextmanager
def loaded(framework: str) -> Iterator[str]:
    """The port of the plain versions in this process, computing in float64 while in use."""
    with contextlib.ExitStack() as stack:
        stack.callback(sys.path.__setitem__, slice(None), [*sys.path])
        if framework in ("pytorch", "decoder"):
            torch = importlib.import_module("torch")
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        if framework == "keras":
            keras = importlib.import_module("keras")
            stack.callback(keras.config.set_floatx, keras.config.floatx())
        if framework == "flax":
            jax = importlib.import_module("jax")
            stack.callback(jax.config.update, "jax_enable_x64", jax.config.jax_enable_x64)
        yield str(FOLDER / f"port_{framework}.py")


# JAX compiles each operation, so it has few components here
PARTS = [(framework, WITH) for framework in FRAMEWORKS[:3]] + [("flax", ("rotary_embedding", "softmax", "scaled_dot_product_attention"))]
DECODER = "decoder", (
    "rms_norm", "rotary_embedding", "scaled_dot_product_attention", "multi_head_attention", "decoder_layer", "decoder", "logits",
    "transformer",
)  # fmt: skip
# components whose core cases the plain versions do not cover
BESIDE = ("penalise/penalty", "training_loss/unsmoothed", "greedy_search/plain", "decoder/mixed")


@pytest.mark.parametrize("framework, components", [*PARTS, DECODER], ids=[*FRAMEWORKS, "decoder"])
def test_a_plain_version_gives_what_the_reference_gives(framework: str, components: tuple[str, ...]) -> None:
    with loaded(framework) as port, mock.patch.object(session, "open_worker", lambda *rest: InProcess(port)):
        passed(port, components, lambda case: case.core or case.id in BESIDE)


def passed(port: str, components: Iterable[str], asked: Callable[[Case], bool]) -> int:
    """Asserts that every case passes or is not covered, and that each component has a pass; returns their number."""
    every = expectations.all_by_id().values()
    cases = [case for case in every if case.component in components and asked(case)]
    results = runner.run(cases, [port], ("float64",), store=expectations.store())
    assert [(one.case, one.message) for one in results if one.status not in (Status.PASS, Status.NOT_COVERED)] == []
    found = [one.component for one in results if one.status == Status.PASS]
    assert {*found} == {*components}
    return len(found)


EVERY = [(framework, WITH) for framework in FRAMEWORKS[:3]] + [("flax", WITH[start::3]) for start in range(3)] + [DECODER]


@pytest.mark.conformance
@pytest.mark.parametrize("framework, components", EVERY)
def test_every_plain_version_passes_every_case_that_it_covers(framework: str, components: tuple[str, ...]) -> None:
    assert passed(str(FOLDER / f"port_{framework}.py"), components, lambda case: True) > 2 * len(components)


def skeleton(node: ast.FunctionDef) -> list[str]:
    """Returns a function's name and arguments, and the targets of its assignments in order."""
    found = [f"{node.name}({ast.unparse(node.args)})"]
    for part in (part for statement in node.body for part in ast.walk(statement) if isinstance(part, ast.stmt)):
        targets = part.targets if isinstance(part, ast.Assign) else []
        found.append(" ".join([type(part).__name__, *map(ast.unparse, targets)]))
    return found


def test_plain_versions_are_short_and_have_the_same_statements_in_one_row() -> None:
    for component in ORDER:
        rows, names = plain.rows(component), plain.functions(component)
        assert bool(rows) == (component in WITH)
        for name in names:
            nodes = [plain.function(package, name) for package in PACKAGES]
            assert all((node.end_lineno or 0) - node.lineno < plain.LONGEST for node in nodes), name
            assert [skeleton(node) for node in nodes] == [skeleton(nodes[0])] * 4, name
        assert sum(row[0].opens for row in rows) == len(names)
        for column, package in enumerate(PACKAGES):
            file = (FOLDER / plain.FILES[package]).read_text().splitlines()
            nodes = [plain.function(package, name) for name in names]
            wanted = [line.strip() for node in nodes for line in file[node.lineno - 1 : node.end_lineno]]
            shown = [re.sub("<[^>]+>", "", str(text)) for row in rows for _, text in row[column].lines]
            assert [html.unescape(text) for text in shown] == wanted


def test_alibi_is_that_of_the_paper_in_every_framework() -> None:
    for framework in FRAMEWORKS:
        with loaded(framework) as port:
            sys.path.insert(0, str(Path(port).parent))
            bias = np.asarray(importlib.import_module(f"plain_{framework}").alibi_bias(8, 2, 3))
        assert bias.shape == (1, 8, 2, 3)
        np.testing.assert_allclose(bias[0, :, 1, 0], [-2 / 2**head for head in range(1, 9)])  # two tokens back; slopes 1/2, 1/4, ...
        np.testing.assert_allclose(bias[0, 0, 0], [-0.5, 0, -0.5])


def test_the_call_with_numbers_prints_what_follows_from_the_equation() -> None:
    code, printed = plain.example()
    hand = np.exp([0, 8**0.5]) / np.exp([0, 8**0.5]).sum()  # the second query sees two keys
    assert str(np.array([*hand, 0]).round(3))[1:-1] in printed and f"{hand @ [10, 20]:.3f}" in printed
    deviations = [float(number) for number in re.findall(r": ([\d.]+),", printed)]
    assert deviations == pytest.approx([8, 1], rel=0.02)
    assert (FOLDER / Path(code.origin).name).read_text() == code.text


@pytest.mark.parametrize("draw", [figures.attention, figures.heads, figures.grouped_heads, figures.causal, figures.rotary])
def test_figures_say_what_they_show_and_take_the_page_s_colours(draw: Any) -> None:
    tree = ElementTree.fromstring(str(draw()))
    image = tree.find("svg")
    assert image is not None and image.get("role") == "img"
    named = {node.get("id"): node.text for node in image if node.tag in ("title", "desc")}
    assert named[image.get("aria-labelledby")] and named[image.get("aria-describedby")] == tree.findtext("figcaption")
    assert not any({"fill", "stroke", "style"} & node.attrib.keys() for node in image.iter())
    for node in image.iter():  # everything is within the image
        for side, size in (("x", "width"), ("y", "height")):
            end = float(node.get(side, 0)) + (float(node.get(size, 0)) if node.tag == "rect" else 0)
            assert end <= float(image.get(size, 0)), node.attrib


def test_figures_show_the_reference_s_masks_and_shapes_that_fit() -> None:
    shapes = re.findall(r">(\d+) × (\d+)<", str(figures.attention()))
    query, key, logits, weights, value, output = (np.zeros((int(rows), int(columns))) for rows, columns in shapes)
    assert (query @ key).shape == logits.shape == weights.shape and (weights @ value).shape == output.shape
    marked = Counter(node.get("class") for node in ElementTree.fromstring(str(figures.causal())).iter("rect"))
    assert marked["on"] == (3 + 4 + 5) + (1 + 2 + 3) and marked["off"] == 2 * 3 * 5 - marked["on"]
    assert figures.FIGURES.keys() <= {*ORDER}


def test_a_docstring_is_told_by_what_its_sentences_are_about() -> None:
    text = (
        "`y = a x`, a line. It is straight. Half-precision dtypes round once. a: the slope. Raises ValueError on 0. It is old. "
        "Source: Euclid."
    )
    assert prose.told(text, ["a"]) == (
        "`y = a x`, a line. It is straight.",
        ("Half-precision dtypes round once.", "It is old."),
        "Source: Euclid.",
    )
