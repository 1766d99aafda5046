"""A real browser without a network, in which a page is opened and watched."""

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

MISSING = "needs a browser"  # the beginning of the reason for which tests of pages are skipped
INSTALL = "apt-get install chromium chromium-driver"


def absent(reason: str) -> None:
    """Skips the test, or fails it in a run that must have a browser."""
    if os.environ.get("ROSETTAFORMER_REQUIRE_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def offline() -> Iterator[Any]:
    """A headless Chromium; the test is skipped where there is none."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and chromedriver):
        absent(f"{MISSING}: {INSTALL}")
    from selenium import webdriver
    from selenium.webdriver.remote.command import Command

    class Settling(webdriver.Chrome):
        """Chrome whose inputs return once the page has reacted: some events, hashchange and close among them, come after the input."""

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
    driver.set_script_timeout(120)  # axe-core on the largest page, on a machine that is busy
    driver.execute_cdp_cmd("Network.enable", {})
    nothing = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", nothing)
    try:
        yield driver
    finally:
        driver.quit()


@contextlib.contextmanager
def opened(driver: Any, page: str, folder: Path) -> Iterator[Any]:
    """The opened page; afterwards nothing may have been requested and nothing may stand in the console."""
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    with visited(driver, file):
        yield driver


@contextlib.contextmanager
def visited(driver: Any, file: Path) -> Iterator[Any]:
    """The opened file; afterwards nothing but files may have been requested and nothing may stand in the console."""
    for log in ("browser", "performance"):
        driver.get_log(log)
    driver.get("about:blank")
    driver.get(file.as_uri())
    while driver.execute_script("return document.readyState") != "complete":  # on a busy machine a long page is still read
        pass
    yield driver
    assert driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    requests = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert requests
    assert [url for url in requests if not url.startswith(("file:", "data:", "about:"))] == []


def violations(driver: Any) -> list[str]:
    """What axe-core has to say against the page that is open: a rule and the first node that breaks it."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        absent("needs axe-core: pip install --no-deps axe-playwright-python")
    driver.execute_script(Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    found = driver.execute_async_script("axe.run(document, {preload: false}).then(found => arguments[0](found.violations))")
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html']} (of {len(one['nodes'])})" for one in found]


def names_nothing_outside(page: str) -> bool:
    """Whether one file is the whole page."""
    sources = re.findall(r"""(?:src|href)\s*=\s*["']([^"'#]+)""", page)
    loads = re.search(r"@import|url\(|fetch\(|XMLHttpRequest|<link rel=.stylesheet", page)
    return sources == ["data:,"] and not loads and "default-src 'none'" in page


def brightness(driver: Any, selector: str, field: str) -> float:
    """The mean of red, green and blue of a colour that a node has."""
    colour = driver.find_element("css selector", selector).value_of_css_property(field)
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


def prefer(driver: Any, scheme: str) -> None:
    """The system's colour scheme: light or dark."""
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})


@contextlib.contextmanager
def wide(driver: Any, width: int) -> Iterator[None]:
    """A window of that width."""
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
    try:
        yield
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
