"""The page of attention weights in a real browser."""

import base64
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import names_nothing_outside, opened, prefer, wide
from messages import naming

from reference_numpy import parameters, preset
from reference_numpy.states import states
from rosettaformer.use.inference.attention_page import LEVELS, AttentionMap, chosen, maps, render

SOURCE = ["[CLS]", "the", "</script>", "<b>bank</b>", "[SEP]"]
TARGET = ["a", "ｂ", "c"]
TOKENS = [f"w{number}" for number in range(8)]
STATES = states(
    parameters.nest({name: 8 * value for name, value in parameters.initialise(preset("tiny"), seed=1).items()}),
    preset("tiny"), np.array([[5, 6, 7, 8, 9]]), np.array([[1, 2, 3]]),
)  # fmt: skip


def page(shown: Sequence[AttentionMap] = tuple(maps(STATES, SOURCE, TARGET))) -> str:
    return render("tiny <model>", ["the & bank"], {"backend": "numpy"}, shown)


def held(text: str) -> list[dict[str, Any]]:
    """Returns the data of the page's script, with its weights as an array."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    read = json.loads(found)
    for one in read["maps"]:
        high, low = np.frombuffer(zlib.decompress(base64.b64decode(one["weights"])), np.uint8).reshape(2, -1)
        shape = len(one["layers"]), len(one["heads"]), len(one["queries"]), len(one["keys"])
        one["weights"] = ((256 * high.astype(int) + low) / read["levels"]).reshape(shape)
    return list(read["maps"])


def test_the_page_holds_the_weights_of_every_stack() -> None:
    encoder, decoder, cross = held(page())
    assert [one["name"] for one in (encoder, decoder, cross)] == [
        "encoder self-attention", "decoder self-attention", "decoder cross-attention",
    ]  # fmt: skip
    assert (encoder["queries"], decoder["keys"], cross["queries"], cross["keys"]) == (SOURCE, TARGET, TARGET, SOURCE)
    for one, (stack, part) in zip((encoder, decoder, cross), (("encoder", "self"), ("decoder", "self"), ("decoder", "cross")), strict=True):
        np.testing.assert_allclose(one["weights"], STATES[stack][f"{part}_attention_lbhts"][:, 0], rtol=0, atol=0.5001 / LEVELS)
    assert f"multiples of 1/{LEVELS}" in page()


def test_what_no_weights_are_is_refused() -> None:
    weights = np.full((1, 1, 2, 3), 1 / 3)
    with pytest.raises(ValueError, match=r"^weights must be .*2 by 2 tokens; got 2 by 3$"):
        page([AttentionMap("self", ["a", "b"], ["a", "b"], weights)])
    weights[0, 0, 1, 1] = np.nan
    with pytest.raises(ValueError, match=naming("attention … 0 … 1")):
        page([AttentionMap("self", ["a", "b"], ["a", "b", "c"], weights)])


def test_twelve_layers_of_128_tokens_are_a_small_file() -> None:
    logits = 3 * np.random.default_rng(0).standard_normal((12, 12, 128, 128))
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert len(page([AttentionMap("self", ["t"] * 128, ["t"] * 128, weights)])) < 5e6


def test_the_page_is_one_file_that_names_nothing_outside() -> None:
    assert names_nothing_outside(re.sub(r'<a class="head".*?>', "", page()))


@pytest.fixture
def browser(driver: Any, tmp_path: Path) -> Iterator[Any]:
    with opened(driver, page(), tmp_path):
        yield driver
    assert driver.title == "rosettaformer: attention"


PIXELS = """
    function pixels(canvas) {
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
      copy.drawImage(canvas, 0, 0);
      return copy.getImageData(0, 0, canvas.width, canvas.height).data;
    }
"""


def drawn(browser: Any, selector: str) -> list[int]:
    """Returns the number of nonempty pixels of each visible canvas, once all visible canvases are drawn."""
    return list(browser.execute_async_script(
        PIXELS
        + """
        const [selector, done] = arguments, opaque = (value, i) => i % 4 === 3 && value > 8;
        const count = () => [...document.querySelectorAll(selector)].map((canvas) => pixels(canvas).filter(opaque).length);
        const wait = () => (waiting.size ? requestAnimationFrame(wait) : done(count()));
        setTimeout(wait, 100);
        """,
        selector,
    ))  # fmt: skip


def head(browser: Any, place: str) -> Any:
    return browser.find_element("css selector", f'.head[href="#{place}"]')


def point(browser: Any, node: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).move_to_element(node).perform()


def title(browser: Any) -> str:
    return str(browser.find_element("id", "zoom-title").text.replace("\n", ", "))


def column(browser: Any, side: str) -> list[list[str]]:
    """Returns every token of a side with its number."""
    items = browser.find_elements("css selector", f"#{side} li")
    return [[node.get_property("textContent") for node in item.find_elements("css selector", "span")] for item in items]


def test_every_head_of_every_layer_is_drawn_when_it_comes_into_sight(browser: Any) -> None:
    assert browser.find_element("css selector", "h2").text == "encoder self-attention 2 layers × 4 heads, 5 tokens"
    before = drawn(browser, ".head canvas")
    assert len(before) == 24
    assert before[0] > 50
    browser.find_elements("css selector", ".head")[-1].location_once_scrolled_into_view  # noqa: B018 - asking for it scrolls
    assert min(drawn(browser, ".head canvas")) > 50


def test_a_click_opens_a_head_and_a_token_shows_its_weights(browser: Any) -> None:
    weights_ts = STATES["decoder"]["cross_attention_lbhts"][1, 0, 3]
    opener = head(browser, "2/1/3")
    opener.click()
    assert title(browser) == "layer 1 · head 3, decoder cross-attention"
    assert column(browser, "queries") == [[token, ""] for token in TARGET]
    assert column(browser, "keys") == [[token, ""] for token in SOURCE]
    whole = drawn(browser, "#zoom canvas")[0]
    point(browser, browser.find_elements("css selector", "#queries li")[1])
    assert column(browser, "keys") == [[token, f"{weight:.3f}"] for token, weight in zip(SOURCE, weights_ts[1], strict=True)]
    assert 0 < drawn(browser, "#zoom canvas")[0] < whole
    point(browser, browser.find_elements("css selector", "#keys li")[4])
    assert column(browser, "queries") == [[token, f"{weight:.3f}"] for token, weight in zip(TARGET, weights_ts[:, 4], strict=True)]
    most = int(weights_ts[:, 4].argmax())
    assert browser.find_element("id", "reading").text.startswith(f"“[SEP]” is attended to by “{TARGET[most]}” {weights_ts[most, 4]:.3f}, ")
    point(browser, browser.find_element("id", "zoom-title"))
    assert column(browser, "queries") == [[token, ""] for token in TARGET]


@pytest.mark.parametrize("width", [390, 768, 1440])
def test_nothing_is_wider_than_the_window(browser: Any, width: int) -> None:
    with wide(browser, width):
        for state in ("", "#2/1/3"):
            browser.execute_script("location.hash = arguments[0]", state)
            sizes = browser.execute_script(
                "return [document.documentElement, document.getElementById('zoom')].map((node) => [node.scrollWidth, node.clientWidth])"
            )
            assert all(inner <= outer for inner, outer in sizes)
        assert min(node.rect["width"] for node in browser.find_elements("css selector", ".head")) > 60


def test_the_lines_are_drawn_again_in_the_colour_of_the_theme(browser: Any) -> None:
    def light() -> float:
        drawn(browser, ".head canvas")
        return browser.execute_script(
            PIXELS
            + """
            const found = pixels(document.querySelector(".head canvas")), at = found.findIndex((value, i) => i % 4 === 3 && value > 200);
            return found.slice(at - 3, at).reduce((sum, value) => sum + value, 0) / 3;
            """
        )

    prefer(browser, "light")
    assert light() < 150
    browser.find_element("id", "theme").click()
    assert light() > 150


def test_the_lines_lead_from_the_queries_to_the_keys(driver: Any, tmp_path: Path) -> None:
    weights = np.zeros((1, 1, 8, 8))
    weights[..., 1] = 1  # every query attends to the second key
    with opened(driver, page([AttentionMap("self", TOKENS, TOKENS, weights)]), tmp_path):
        drawn(driver, ".head canvas")
        edges = driver.execute_script(
            PIXELS
            + """
            const canvas = document.querySelector(".head canvas"), { width, height } = canvas, found = pixels(canvas);
            const rows = (x) => [...Array(height).keys()].filter((y) => found[4 * (y * width + x) + 3] > 100).map((y) => y / height);
            return [rows(0), rows(width - 1)];
            """
        )
    (first, *_, last), right = edges
    assert first < 0.1
    assert last > 0.85
    assert right
    assert all(0.1 < row < 0.25 for row in right)


PAIR = ["[CLS]", "a", "b", "[SEP]", "x", "y", "[SEP]"]
PAIR_WEIGHTS = np.random.default_rng(2).dirichlet(np.ones(7), (2, 4, 7))


def test_layers_and_heads_are_chosen_by_the_numbers_of_the_model() -> None:
    one = AttentionMap("self", PAIR, PAIR, PAIR_WEIGHTS, second=4)
    (some,) = chosen([one], layers=(1,), heads=(0, 3))
    assert (some.layers, some.heads, some.second) == ((1,), (0, 3), 4)
    np.testing.assert_array_equal(some.weights_lhts, PAIR_WEIGHTS[1:, [0, 3]])
    assert chosen([one])[0].weights_lhts.shape == PAIR_WEIGHTS.shape
    assert 'href="#0/1/3"' in page([some])
    assert 'href="#0/0/3"' not in page([some])
    with pytest.raises(ValueError, match=r"^heads must be from 0 to 3; got 4$"):
        chosen([one], heads=(2, 4))
