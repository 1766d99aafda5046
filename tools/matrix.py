"""Runs the check and shows it: the picture of the matrix, the abridged table in docs/check.md and the shorter one in README.md.

`make evidence STEP=matrix` is the command. All three are written below the step's folder.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from evidence import HOUSE, stamped, write

__all__ = ["abridged", "shown", "with_output"]

PAGE, README, PICTURE = "docs/check.md", "README.md", "docs/images/matrix.png"
DTYPES = ("f64", "f32", "bf16", "f16")
IN_README = ("multi_head_attention", "transformer")
OUTPUT = re.compile(r"(?<=^```\n) {20}.*?(?=^```$)", re.MULTILINE | re.DOTALL)


def shown(text: str) -> list[str]:
    """The components whose rows a page shows."""
    return re.findall(r"^ (\w+) +f\d\d ", OUTPUT.findall(text)[0], re.MULTILINE)


def abridged(printed: str, components: Collection[str], dtypes: Collection[str] = DTYPES, legend: bool = True) -> str:
    """What the command printed, with the rows of these components; ` ...` stands for others."""
    head, _, rest = printed.partition(" ─")
    rule, _, body = rest.partition("\n")
    rows, _, foot = body.partition("\n\n")
    lines, own = [*head.strip("\n").splitlines(), f" ─{rule}"], False
    for row in map(str.rstrip, rows.splitlines()):
        name = row[1:].partition(" ")[0]
        own = name in components if name else own
        if own and row.split()[bool(name)] in dtypes:
            lines.append(row)
        elif not own and lines[-1] != " ...":
            lines.append(" ...")
    last = foot.strip().splitlines()
    return "\n".join([*map(str.rstrip, lines), *(["", *last] if legend else last[-1:])]) + "\n"


def with_output(name: str, printed: str, components: Collection[str] = (), **more: Any) -> str:
    """The page with this output, as `abridged` makes it, in place of its own; components: by default those that it has."""
    text = (HOUSE / name).read_text()
    output = abridged(printed, components or shown(text), **more)
    return stamped(OUTPUT.sub(lambda _: output, text), "matrix")


def main() -> None:
    """Writes the picture and both pages. Raises SystemExit where the check fails or there is no browser."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        sys.exit("a browser is required: apt-get install chromium")
    out = Path(sys.argv[1])
    (out / PICTURE).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "matrix.html")
        command = [sys.executable, "-m", "rosettaformer", "check", "--html", str(report)]
        result = subprocess.run(command, cwd=HOUSE, stdout=subprocess.PIPE, text=True)
        if result.returncode:
            sys.exit(f"{result.stdout}\nthe check ended with {result.returncode}")
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1440,1100", f"--screenshot={out / PICTURE}"]
        subprocess.run([browser, *options, report.as_uri()], check=True, capture_output=True)
    printed = "\n".join(line.rstrip() for line in result.stdout.splitlines())
    write(out, PAGE, with_output(PAGE, printed))
    write(out, README, with_output(README, printed, IN_README, dtypes=("f64", "f32"), legend=False))


if __name__ == "__main__":
    main()
