"""Runs the check and shows its results table: a picture, and an abridged table in docs/check.md.

`make evidence STEP=matrix` is the command. Both are written below the step's folder.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from evidence import HOUSE, stamped, write
from pictures import screenshot

PAGE, PICTURE = "docs/check.md", "docs/images/matrix.png"
DTYPES = ("f64", "f32", "bf16", "f16")
OUTPUT = re.compile(r"(?<=^```\n)(?:PASSED|FAILED): .*?(?=^```$)", re.MULTILINE | re.DOTALL)


def shown(text: str) -> list[str]:
    """Returns the components whose rows a page shows."""
    return re.findall(r"^ (\w+) +f\d\d ", OUTPUT.findall(text)[0], re.MULTILINE)


def abridged(printed: str, components: Collection[str]) -> str:
    """Returns the output of the command with the rows of these components; ` ...` stands for others."""
    head, _, rest = printed.partition(" ─")
    rule, _, body = rest.partition("\n")
    rows, _, foot = body.partition("\n\n")
    lines, own = [*head.strip("\n").splitlines(), f" ─{rule}"], False
    for row in map(str.rstrip, rows.splitlines()):
        name = row[1:].partition(" ")[0]
        own = name in components if name else own
        if own and row.split()[bool(name)] in DTYPES:
            lines.append(row)
        elif not own and lines[-1] != " ...":
            lines.append(" ...")
    return "\n".join([*map(str.rstrip, lines), "", *foot.strip().splitlines()]) + "\n"


def with_output(name: str, printed: str) -> str:
    """Returns the page with this output in place of its own, for the same components."""
    text = (HOUSE / name).read_text()
    output = abridged(printed, shown(text))
    return stamped(OUTPUT.sub(lambda _: output, text), "matrix")


def main() -> None:
    """Writes the picture and the page. Raises SystemExit if the check fails or there is no browser."""
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "matrix.html")
        command = [sys.executable, "-m", "rosettaformer", "check", "--html", str(report)]
        result = subprocess.run(command, cwd=HOUSE, stdout=subprocess.PIPE, text=True)
        if result.returncode:
            sys.exit(f"{result.stdout}\nthe check ended with {result.returncode}")
        screenshot(report.as_uri(), out / PICTURE, 1440, 1100)
    printed = "\n".join(line.rstrip() for line in result.stdout.splitlines())
    write(out, PAGE, with_output(PAGE, printed))


if __name__ == "__main__":
    main()
