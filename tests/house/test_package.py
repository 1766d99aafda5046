"""The wheel has every file and complete metadata, and its commands run away from the checkout, in each Python found here."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from environments import HOUSE, PACKAGES, PROJECT

import rosettaformer

URL = PROJECT["urls"]["Repository"]
README = (HOUSE / "README.md").read_text(encoding="utf-8")


def tracked(*places: str) -> set[str]:
    """Returns the files that a commit of the current state would have."""
    found = subprocess.run(["git", "ls-files", *places], cwd=HOUSE, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("this is no checkout")
    return {name for name in found.stdout.splitlines() if (HOUSE / name).is_file()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel from a copy of the tracked files with the installed packages, without network access."""
    pytest.importorskip("setuptools")
    place = tmp_path_factory.mktemp("wheel")
    for name in tracked(*PACKAGES) | {"pyproject.toml", "README.md"}:
        (place / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HOUSE / name, place / "source" / name)
    cached = place / "source" / "rosettaformer" / "__pycache__" / "cli.cpython-311.pyc"
    cached.parent.mkdir()
    cached.write_bytes(b"")
    build = "import setuptools.build_meta as build, sys; print(build.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(place)], cwd=place / "source", capture_output=True, check=True)
    (built,) = place.glob("*.whl")
    return built


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


@pytest.mark.conformance
def test_the_wheel_has_every_tracked_file_of_the_packages_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == tracked(*PACKAGES)


@pytest.mark.conformance
def test_its_metadata_says_who_where_and_for_what(wheel: Path) -> None:
    said = metadata(wheel)
    assert said["Author"] and said["Keywords"] and said["Summary"] == PROJECT["description"]
    urls = dict(line.split(", ") for line in said.get_all("Project-URL", []))
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= urls.keys()
    assert all(url.startswith(URL) for url in urls.values())
    classifiers = said.get_all("Classifier", [])
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in classifiers and "Framework :: Pytest" in classifiers


def test_the_version_is_that_of_the_metadata() -> None:
    assert rosettaformer.__version__ == PROJECT["version"]


def test_the_links_of_the_readme_are_absolute_and_name_tracked_files() -> None:
    targets = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", README, re.MULTILINE))
    links, pictures = targets.values(), [targets[name] for name in re.findall(r"!\[[^\]]*\]\[([\w-]+)\]", README)]
    assert links and all(link.startswith("https://") for link in links) and "](" not in README
    assert set(re.findall(r"\]\[([\w-]+)\]", README)) == targets.keys()
    raw = URL.replace("github.com", "raw.githubusercontent.com") + "/main/"
    assert pictures and all(link.startswith(raw) for link in pictures)
    named = {link.removeprefix(raw).removeprefix(f"{URL}/blob/main/").partition("#")[0] for link in links}
    assert named - tracked() == set()


def test_the_changelog_begins_with_what_is_unreleased_and_dates_the_rest() -> None:
    headings = re.findall(r"^## (.*)$", (HOUSE / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading) for heading in headings[1:])


# commands run where the wheel is installed and there is no checkout; {} is an available framework
COMMANDS = (
    "doctor",
    "list",
    "list cases",
    "check {} --component softmax --dtype float32",
    "new-port numpy my_port",
    "diagnose my_port.py --component layer_norm",
    "new-checkpoint llama --tokenizer --out folder",
    "generate folder --prompt a --max-new-tokens 3 --backend {}",
    "report --checkpoint folder --out report.html --only matrix --backend numpy --quick",
    "vectors export vectors --component softmax",
)
EXPLAINED = """
from rosettaformer.commands import explain
from rosettaformer.judge.catalogue import all_defects
from rosettaformer.judge.catalogue.sharded import all_faults

explain._effects = lambda defect: []  # they are measured, and take long
for name in [*all_defects(), *all_faults()]:
    explain.explain.callback(name, False)
"""
FRAMEWORKS = {"torch": "torch", "tf": "tensorflow", "jax": "jax"}
NEWER = ("python3.12", "python3.13", "python3.14", "python3.15")
ENVIRONMENTS = "ROSETTAFORMER_PYTHONS"  # interpreters with the wheel's requirements, separated by colons


def interpreters() -> list[str]:
    """Returns this interpreter, and the others that are configured or on the path."""
    named = os.environ.get(ENVIRONMENTS, "").split(":")
    return [sys.executable, *filter(None, [*named, *map(shutil.which, NEWER)])]


def has(python: str, *modules: str) -> list[str]:
    """Returns the modules that an interpreter finds; none if it does not run."""
    code = "import importlib.util, sys; print(*filter(importlib.util.find_spec, sys.argv[1:]))"
    return subprocess.run([python, "-c", code, *modules], capture_output=True, text=True).stdout.split()


def environment(python: str, wheel: Path, folder: Path) -> Path:
    """Makes a virtual environment with the wheel and an interpreter's packages; returns its Python."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    seen = subprocess.run([python, "-c", "import sys; print(*sys.path, sep='\\n')"], cwd=folder, capture_output=True, text=True, check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    shutil.unpack_archive(wheel, site, "zip")  # unpacking suffices: there is no build step
    paths = [path for path in seen.stdout.splitlines() if path.endswith("-packages")]
    (site / "seen.pth").write_text("\n".join(paths))
    return folder / "bin" / "python"


@pytest.mark.conformance
def test_the_commands_run_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    run_commands(sys.executable, wheel, tmp_path)


@pytest.mark.conformance
@pytest.mark.parametrize(
    "python", interpreters()[1:] or [pytest.param("", marks=pytest.mark.skip(f"no other Python: name it in {ENVIRONMENTS}"))]
)
def test_the_commands_run_in_a_newer_python(python: str, wheel: Path, tmp_path: Path) -> None:
    if not has(python, "numpy"):
        pytest.skip(f"{python} has no NumPy: name an environment that has it in {ENVIRONMENTS}")
    run_commands(python, wheel, tmp_path)


def run_commands(python: str, wheel: Path, place: Path) -> None:
    inner = environment(python, wheel, place / "environment")
    work = place / "work"
    work.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "ROSETTAFORMER"))}

    def run(*words: str) -> str:
        found = subprocess.run([inner, *words], cwd=work, env=kept, capture_output=True, text=True, timeout=1200)
        assert found.returncode == 0, f"{words}\n{found.stdout[-3000:]}\n{found.stderr[-3000:]}"
        assert "Traceback" not in found.stderr
        return found.stdout

    assert run("-c", "import rosettaformer as r; print(r.__file__, r.__version__)").split() == [
        str(next(work.parent.glob("environment/lib/python*/site-packages/rosettaformer/__init__.py"))), PROJECT["version"],
    ]  # fmt: skip
    assert run("-c", "from rosettaformer.common.extras import install; print(install('jax'))").strip() == "pip install 'rosettaformer[jax]'"
    run("-c", EXPLAINED)
    if all(has(python, name) for name in ("jinja2", "pygments", "markdown_it", *FRAMEWORKS.values())):
        run("-m", "rosettaformer", "guide", "--out", "guide")
        assert (work / "guide" / "index.html").exists()
    for port in [port for port, package in FRAMEWORKS.items() if has(python, package)]:
        for line in COMMANDS:
            if "{}" in line or port == "torch":
                run("-m", "rosettaformer", *line.format(port).split())
