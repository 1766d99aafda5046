"""A real browser without network access, for opening and watching pages."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MISSING = "needs a browser"  # prefix of the skip reason of tests that open pages
INSTALL = "apt-get install chromium chromium-driver"


def absent(reason: str) -> None:
    """Skips the test, or fails it in a run that must have a browser."""
    if os.environ.get("ROSETTAFORMER_REQUIRE_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def offline() -> Iterator[Any]:
    """Yields a headless Chromium without network access; skips the test if there is none."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and chromedriver):
        absent(f"{MISSING}: {INSTALL}")
    from selenium import webdriver
    from selenium.webdriver.remote.command import Command

    class Settling(webdriver.Chrome):
        """Chrome whose inputs return only when the page has reacted: events such as hashchange and close fire after the input."""

        def execute(self, driver_command: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
            answer = super().execute(driver_command, params)
            if driver_command in (Command.CLICK_ELEMENT, Command.SEND_KEYS_TO_ELEMENT, Command.W3C_ACTIONS):
                self.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")
            return answer

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1300,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Settling(options=options, service=webdriver.ChromeService(chromedriver))
    driver.implicitly_wait(3)
    driver.set_script_timeout(120)  # seconds for axe-core on the largest page on a busy machine
    driver.execute_cdp_cmd("Network.enable", {})
    nothing = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", nothing)
    try:
        yield driver
    finally:
        driver.quit()


@contextlib.contextmanager
def opened(driver: Any, page: str, folder: Path) -> Iterator[Any]:
    """Opens a page; checks on leaving that it requested nothing and logged nothing to the console."""
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    with visited(driver, file):
        yield driver


@contextlib.contextmanager
def visited(driver: Any, file: Path) -> Iterator[Any]:
    """Opens a file; checks on leaving that it requested only files and logged nothing to the console."""
    for log in ("browser", "performance"):
        driver.get_log(log)
    driver.get("about:blank")
    driver.get(file.as_uri())
    while driver.execute_script("return document.readyState") != "complete":  # a busy machine may still be reading a long page
        pass
    yield driver
    assert driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    requests = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert requests
    assert [url for url in requests if not url.startswith(("file:", "data:", "about:"))] == []


def violations(driver: Any) -> list[str]:
    """Returns the axe-core violations of the open page: each rule with the first node that breaks it."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        absent("needs axe-core: pip install --no-deps axe-playwright-python")
    driver.execute_script(Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    found = driver.execute_async_script("axe.run(document, {preload: false}).then(found => arguments[0](found.violations))")
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html']} (of {len(one['nodes'])})" for one in found]


def names_nothing_outside(page: str) -> bool:
    """Whether the page is a single self-contained file."""
    sources = re.findall(r"""(?:src|href)\s*=\s*["']([^"'#]+)""", page)
    loads = re.search(r"@import|url\(|fetch\(|XMLHttpRequest|<link rel=.stylesheet", page)
    return sources == ["data:,"] and not loads and "default-src 'none'" in page


def brightness(driver: Any, selector: str, field: str) -> float:
    """Returns the mean of red, green and blue of a node's color property."""
    colour = driver.find_element("css selector", selector).value_of_css_property(field)
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


def prefer(driver: Any, scheme: str) -> None:
    """Sets the system's color scheme to light or dark."""
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})


@contextlib.contextmanager
def wide(driver: Any, width: int) -> Iterator[None]:
    """Sets the width of the window."""
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
    try:
        yield
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
