"""Takes the pictures of README.md and docs/guide.md: the quick start in a terminal, and pages of the guide.

`make evidence STEP=pictures` is the command; it needs chromium. `screenshot` serves other tools too.
"""

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from code_blocks import ran
from evidence import HOUSE
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text
from session import CONSOLE, abridged, outputs, prepared

COLUMNS = 62  # so narrow that a telephone shows it legibly
GUIDE = {  # picture -> page of the guide, width, height
    "guide.png": ("components/scaled_dot_product_attention.html", 1600, 1700),
    "guide-defect.png": ("defects/NRM1.html", 768, 1200),
    "guide-dark.png": ("translate/pytorch-to-flax.html", 1280, 900),
    "guide-narrow.png": ("components/layer_norm.html", 390, 1200),
}
DARK = ("--blink-settings=preferredColorScheme=0",)
FORMAT = """<meta charset="utf-8"><style>{stylesheet}
body {{ margin: 0; background: {background}; color: {foreground} }}
pre {{ margin: 0; padding: 18px; font: 15px/20px monospace }}</style><pre>{code}</pre>"""


def screenshot(address: str, path: Path, width: int, height: int, *options: str) -> None:
    """Writes what a browser shows at an address, in pixels. Raises SystemExit without a browser."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        sys.exit("a browser is required: apt-get install chromium")
    path.parent.mkdir(parents=True, exist_ok=True)
    size = [f"--window-size={width},{height}", f"--screenshot={path}"]
    subprocess.run([browser, "--headless", "--no-sandbox", "--hide-scrollbars", *size, *options, address], check=True, capture_output=True)


def terminal(shown: dict[str, str], folder: Path) -> tuple[str, int]:
    """Runs commands in a folder, each with the output that a page shows.

    Returns what a terminal of `COLUMNS` columns displays, abridged like the page, as HTML, and the number of its lines.
    """
    os.environ |= {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    for line, text in shown.items():
        console.print(Text(f"$ {line}", style="bold"))
        console.print(Text.from_ansi(abridged(ran(line, folder).stdout, text).rstrip()), end="\n\n")
    lines = console.export_text(clear=False).rstrip().count("\n") + 1
    return console.export_html(theme=MONOKAI, code_format=FORMAT), lines


def main() -> None:
    out, page = Path(sys.argv[1], "docs", "images"), (HOUSE / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as place:
        folder, console = Path(place), Path(place, "console.html")
        prepared(page, folder)
        shown = {line: text for block in CONSOLE.findall(page) for line, text in outputs(block) if "my_port.py" in line}
        text, lines = terminal(shown, folder)
        console.write_text(text, encoding="utf-8")
        screenshot(console.as_uri(), out / "check.png", 9 * COLUMNS + 50, 20 * lines + 40, "--force-device-scale-factor=2")
        subprocess.run(
            [sys.executable, "-m", "rosettaformer", "guide", "--out", f"{place}/guide"], cwd=HOUSE, check=True, capture_output=True
        )
        for name, (address, width, height) in GUIDE.items():
            screenshot(f"file://{place}/guide/{address}", out / name, width, height, *DARK * ("dark" in name))


if __name__ == "__main__":
    main()
