"""Takes the pictures of README.md and docs/guide.md: the quick start in a terminal, and pages of the guide.

`make evidence STEP=pictures` is the command; it needs chromium. `screenshot` serves other tools too.
"""

import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from code_blocks import blocks, ran
from evidence import HOUSE
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

__all__ = ["screenshot"]

COLUMNS = 62  # so narrow that a telephone shows it legibly
GUIDE = {  # picture -> page of the guide, width, height
    "guide.png": ("components/scaled_dot_product_attention.html#source", 1280, 860),
    "guide-defect.png": ("defects/NRM1.html", 768, 1200),
    "guide-dark.png": ("translation/pytorch-to-flax.html", 1280, 900),
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


def terminal(lines: list[str], folder: Path) -> str:
    """Runs commands in a folder; returns what a terminal of `COLUMNS` columns shows, as HTML."""
    os.environ |= {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text(f"$ {line}", style="bold"))
        console.print(Text.from_ansi(ran(line, folder).stdout.rstrip()), end="\n\n")
    return console.export_html(theme=MONOKAI, code_format=FORMAT)


def main() -> None:
    out = Path(sys.argv[1], "docs", "images")
    quick = [block for block in blocks(HOUSE / "README.md") if block.section == "Quick start"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "my_port.py").write_text(next(block.text for block in quick if block.language == "python"))
        page = folder / "page.html"
        commands = [line.removeprefix("$ ") for block in quick if block.language == "console" for line in block.text.splitlines()]
        page.write_text(terminal([line for line in commands if "my_port.py" in line and line.startswith("rosettaformer ")], folder))
        height = 20 * page.read_text().count("\n") + 36
        screenshot(page.as_uri(), out / "check.png", 9 * COLUMNS + 50, height, "--force-device-scale-factor=2")
        subprocess.run(shlex.split(f"{sys.executable} -m rosettaformer guide --out {place}/guide"), cwd=HOUSE, check=True)
        for name, (address, width, height) in GUIDE.items():
            screenshot(f"file://{place}/guide/{address}", out / name, width, height, *DARK * ("dark" in name))


if __name__ == "__main__":
    main()
