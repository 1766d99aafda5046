"""The HTML report in a real browser."""

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import brightness, names_nothing_outside, opened, prefer, wide

from rosettaformer.judge.compare import HIGHEST, Comparison
from rosettaformer.judge.diagnosis import Finding
from rosettaformer.judge.diagnosis.divergence import Divergence, Row
from rosettaformer.judge.report import html
from rosettaformer.judge.result import Result
from rosettaformer.judge.status import undefined
from rosettaformer.judge.summary import Summary

pytestmark = pytest.mark.product

PORT = "command:./my port & <co>"
HOSTILE = "</script><script>document.title = 'taken'</script><b id='bold'>bold</b>"


def row(case: str, port: str = PORT, dtype: str = "float32", status: str = "pass", **changes: Any) -> Result:
    numbers = {"ratio": 0.5, "error": 1e-7, "noise": 2e-7, "ulps": 1.0, "allowed": 9e-7} if status == "pass" else {}
    return Result(case, case.partition("/")[0], port, dtype, "cpu", "eager", status, **numbers | changes)


def results() -> list[Result]:
    heat = [[0.001, 0.5, 2.0], [40.0, 1234.0, HIGHEST]]
    wrong = {"ratio": 4936.0, "error": 1.25e-3, "noise": 2.5e-7, "ulps": 10486.0, "allowed": 1.01e-6}
    wrong |= {"worst": (0, 1, 2), "output": "output"}
    message = f"output: error 0.00125 at [0, 1, 2], allowed 1.01e-06 {HOSTILE}"
    softmax = itertools.product(("torch", PORT), ("float64", "float32"), ("plain", "long"))
    return [
        *(row(f"softmax/{name}", port, dtype) for port, dtype, name in softmax),
        row("layer_norm/plain", "torch"),
        row("layer_norm/plain"),
        row("layer_norm/large_mean", status="differs", message=message, heat=heat, **wrong),
        row("layer_norm/square", "torch", status="deviation", message="one pass (https://example.org/1): error 1", error=1.0, allowed=0.5),
        row("dropout/mixed", status="crash", message="the port's process ended with signal 11"),
        row("dropout/mixed", "torch", status="not covered", message=undefined("dropout")),
    ]


def divergence() -> Divergence:
    good, bad = Comparison(0.5, 0.1, 0.0, 0.0), Comparison(90.0, 22.5, 1.0, 0.1, message="error 1 at [0, 0]")
    rows = (
        Row("", "transformer", 0, bad, bad, True),
        Row("encoder", "encoder", 1, bad, good, True),
        Row("encoder.layers.0", "encoder_layer", 2, bad, bad, True, first=True, message="error 1 at [0, 0]"),
    )
    return Divergence(PORT, "transformer/feed_forward_dropout", "float32", "encoder.layers.0: the first that fails", rows, [[0.1, 22.5]])


DIAGNOSIS = "layer_norm: <computes> E[x²] − E[x]² (NRM4)"


def page() -> str:
    findings = {
        PORT: [Finding("layer_norm", "float32", "explained", (("NRM4",),), DIAGNOSIS)],
        "torch": [Finding("layer_norm", "float32", "explained", (("NRM1",),), "a finding on another port")],
    }
    about = {"torch": ("ready", {"version": {"torch": "2.13.0"}, "devices": ["cpu"], "precision": "highest"}), PORT: ("ready", {})}
    return html.render(Summary(results()), about, findings, [divergence()])


def test_the_page_is_one_file_whose_diagnosis_stands_first() -> None:
    assert names_nothing_outside(page())
    text = page()
    assert 0 < text.index('id="diagnosis"') < text.index('id="divergence"') < text.index('id="matrix"') < text.index('id="failures"')


@pytest.fixture
def browser(driver: Any, tmp_path: Path) -> Iterator[Any]:
    with opened(driver, page(), tmp_path):
        yield driver
    assert driver.title == "rosettaformer: differs"


def shown(browser: Any, selector: str) -> list[str]:
    nodes = browser.find_elements("css selector", selector)
    return [node.text for node in nodes if node.is_displayed()]


def cell(browser: Any, component: str, port: str, dtype: str) -> Any:
    cells = browser.find_elements("css selector", f'tr[data-component="{component}"] td[data-dtype="{dtype}"]')
    return next(node for node in cells if node.get_attribute("data-port") == port)


def choose(browser: Any, name: str, text: str) -> None:
    from selenium.webdriver.support.select import Select

    Select(browser.find_element("name", name)).select_by_visible_text(text)


def dialog(browser: Any) -> Any:
    return browser.find_element("id", "cases")


def test_the_header_and_the_matrix_say_what_became_of_every_component(browser: Any) -> None:
    assert "differs" in browser.find_element("tag name", "h1").text
    assert shown(browser, ".totals li") == ["13 compared", "10 passed", "2 failed", "1 expected to fail", "1 skipped"]
    environment = browser.find_element("css selector", ".environment").text
    for text in ("release 1", "NumPy", "torch 2.13.0", "cpu", "matmul highest", PORT):
        assert text in environment
    texts = {
        ("softmax", "torch", "float64"): "0.50", ("layer_norm", PORT, "float32"): "1/2", ("layer_norm", "torch", "float32"): "1/2",
        ("dropout", PORT, "float32"): "1/1", ("dropout", "torch", "float32"): "–", ("dropout", "torch", "float64"): "",
    }  # fmt: skip
    assert {key: cell(browser, *key).text for key in texts} == texts
    assert cell(browser, "layer_norm", PORT, "float32").get_attribute("class") == "fail"
    assert cell(browser, "layer_norm", "torch", "float32").get_attribute("class") == "accepted"


def test_the_matrix_filters(browser: Any) -> None:
    rows, heads = ".matrix tbody th", ".matrix .group"
    assert shown(browser, rows) == ["softmax", "layer_norm", "dropout"]
    browser.find_element("name", "component").send_keys("Norm")
    assert shown(browser, rows) == ["layer_norm"]
    assert shown(browser, "#failures ~ div tbody a") == ["layer_norm/large_mean"]
    assert shown(browser, "#shown") == ["1 of 3 components"]
    browser.find_element("css selector", "#filters button").click()
    assert len(shown(browser, rows)) == 3
    choose(browser, "port", "torch")
    assert [text.split()[0] for text in shown(browser, heads)] == ["torch"]
    assert shown(browser, "#failures ~ div tbody a") == []
    choose(browser, "port", "all")
    choose(browser, "dtype", "float64")
    assert shown(browser, rows) == ["softmax"]
    assert browser.find_element("css selector", heads).get_attribute("colspan") == "1"
    choose(browser, "dtype", "all")
    choose(browser, "status", "crash")
    assert shown(browser, rows) == ["dropout"]
    assert "dim" in cell(browser, "dropout", "torch", "float32").get_attribute("class")


def test_a_failing_cell_opens_its_case_with_everything_that_is_known(browser: Any) -> None:
    from selenium.webdriver import ActionChains

    assert not dialog(browser).is_displayed()
    cell(browser, "layer_norm", PORT, "float32").find_element("tag name", "a").click()
    assert dialog(browser).is_displayed()
    cards = dialog(browser).find_elements("tag name", "details")
    assert [card.find_element("class name", "name").text for card in cards] == ["layer_norm/large_mean", "layer_norm/plain"]
    assert [card.get_attribute("open") is not None for card in cards] == [True, False]
    text = cards[0].text
    for words in ("0.00125", "1.01e-6", "2.50e-7", "4940", "10500", "output[0, 1, 2]", HOSTILE, DIAGNOSIS):
        assert words in text
    assert "a finding on another port" not in text
    fills = [rect.get_attribute("fill") for rect in cards[0].find_elements("css selector", "svg rect")]
    assert fills[0] == "var(--h0)"
    assert fills[4:] == ["var(--h9)", "var(--hx)"]
    assert len(fills) == 6
    ActionChains(browser).move_to_element(cards[0].find_elements("css selector", "svg rect")[3]).perform()
    assert dialog(browser).find_element("tag name", "output").text == "position 1, feature 0: 40 × allowed"
    browser.find_element("id", "close").click()
    assert not dialog(browser).is_displayed()
    assert "#" not in browser.current_url


@pytest.mark.parametrize(
    ("fragment", "cards"),
    [("#layer_norm/large_mean", 1), ("#layer_norm/plain", 2), ("#softmax?port=torch", 4), ("#softmax/plain?port=torch&dtype=float32", 1)],
)
def test_a_deep_link_opens_its_cases(browser: Any, fragment: str, cards: int) -> None:
    url = browser.current_url
    browser.get("about:blank")
    browser.get(url + fragment)
    assert dialog(browser).is_displayed()
    assert len(dialog(browser).find_elements("tag name", "details")) == cards


def test_every_failure_links_to_its_case_and_the_case_to_itself(browser: Any) -> None:
    browser.find_element("link text", "layer_norm/large_mean").click()
    assert shown(browser, "#cases .name") == ["layer_norm/large_mean"]
    before = browser.current_url
    dialog(browser).find_element("link text", "link to this case").click()
    assert shown(browser, "#cases .name") == ["layer_norm/large_mean"]
    assert browser.current_url.split("#")[0] == before.split("#")[0]


def test_the_keyboard_is_enough(browser: Any) -> None:
    from selenium.webdriver import Keys

    def active() -> Any:
        return browser.switch_to.active_element

    start = cell(browser, "softmax", "torch", "float64").find_element("tag name", "a")
    start.send_keys(Keys.ARROW_RIGHT)
    active().send_keys(Keys.ARROW_DOWN)
    assert active().get_attribute("aria-label") == "layer_norm float32, torch eager cpu: 1 pass, 1 deviation"
    active().send_keys(Keys.ENTER)
    assert dialog(browser).is_displayed()
    active().send_keys(Keys.ESCAPE)
    assert not dialog(browser).is_displayed()
    assert active().get_attribute("aria-label").startswith("layer_norm float32")


@pytest.mark.parametrize("width", [390, 768, 1440])
def test_every_column_is_in_sight(browser: Any, width: int) -> None:
    with wide(browser, width):
        widths = browser.execute_script("""
            return [document.documentElement, ...document.querySelectorAll(".scroll, pre, .environment")].map(
                (node) => [node.className || node.tagName, node.scrollWidth, node.clientWidth])""")
        assert [node for node in widths if node[1] > node[2]] == []
        cells = browser.find_elements("css selector", ".matrix td[data-dtype] a, .list td, .tree td")
        edges = [node.rect["x"] + node.rect["width"] for node in cells if node.is_displayed()]
        assert len(edges) > 40
        assert max(edges) <= width
        heads = [node.text for node in browser.find_elements("css selector", ".matrix .whose") if node.is_displayed()]
        assert heads[:2] == (["torch", PORT] if width < 1000 else [])


def test_a_partial_port_is_one_line_and_equal_messages_are_one_row() -> None:
    names = ("softmax", "logits")
    left = [row(f"{name}/{case}", status="not covered", message=undefined(name)) for name in names for case in range(300)]
    dtypes = ("float64", "float32")
    failed = [row(f"layer_norm/{case}", dtype=dtype, status="error", message="TypeError: no") for case in range(10) for dtype in dtypes]
    nothing = row("dropout/empty", ratio=math.nan)
    text = html.render(Summary([*left, *failed, nothing]))
    assert "does not cover 2 components: softmax, logits" in text
    assert text.count("softmax") < 5
    assert not re.search(r">\s*nan\s*<", text, re.IGNORECASE)
    assert text.count("and 19 more with the same message") == 1


def test_findings_the_first_divergence_and_what_was_not_compared_are_shown(browser: Any) -> None:
    assert shown(browser, ".tree tbody th") == ["transformer", "encoder", "encoder.layers.0"]
    first = browser.find_element("css selector", ".tree tr.first")
    assert first.text == "encoder.layers.0 22.5 22.5 first divergence error 1 at [0, 0]"
    assert len(browser.find_elements("css selector", ".tree svg rect")) == 2
    indents = [node.value_of_css_property("padding-left") for node in browser.find_elements("css selector", ".tree tbody th")]
    widths = [float(indent.removesuffix("px")) for indent in indents]
    assert widths == sorted(set(widths))
    assert len(shown(browser, "#diagnosis ~ .finding")) == 2
    (accepted,) = shown(browser, "#accepted ~ div tbody tr")
    assert "one pass (https://example.org/1)" in accepted
    (left,) = shown(browser, "#not-compared ~ details tbody tr")
    assert undefined("dropout") in left


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_can_be_read(browser: Any, scheme: str) -> None:
    """The button that switches the theme is that of all pages: tests/inference/test_attention_page.py."""
    prefer(browser, scheme)
    ground = brightness(browser, "body", "background-color")
    texts = ("body", ".matrix td.fail", ".matrix td.pass", ".note")
    colours = [brightness(browser, one, "color") for one in texts]
    assert (ground < 60) == (scheme == "dark") and all(abs(colour - ground) > 70 for colour in colours)
    assert (brightness(browser, "svg rect", "fill") < 120) == (scheme == "dark")
    prefer(browser, "light")


@pytest.mark.conformance
def test_a_run_without_failures_or_ports_is_a_page_too(driver: Any, tmp_path: Path) -> None:
    for name, rows, title in (("good", [row("softmax/plain")], "all conform"), ("empty", [], "nothing was compared")):
        file = tmp_path / f"{name}.html"
        file.write_text(html.render(Summary(rows)), encoding="utf-8")
        driver.get_log("browser")
        driver.get(file.as_uri())
        assert driver.title == f"rosettaformer: {title}"
        assert driver.get_log("browser") == []
