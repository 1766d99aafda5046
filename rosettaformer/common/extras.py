"""Checks for missing packages before any work, and tells how to install them."""

import contextlib
import functools
import importlib.util
import json
import shlex
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

NAME = "rosettaformer"
# package without an extra -> how to install it; KerasHub requires tensorflow, not tensorflow-cpu
OTHERS = {"transformers": "pip install transformers", "keras_hub": "pip install --no-deps keras-hub regex"}


class MissingBackend(Exception):
    """Raised if a framework or package is missing or broken; the message says how to fix it."""


def install(extra: str) -> str:
    """Returns the command that installs an extra, in the way rosettaformer itself was installed.

    An editable checkout is installed again with the extra, by its path unless it is the current
    folder.
    """
    checkout = _checkout()
    if checkout is None:
        return f"pip install {shlex.quote(f'{NAME}[{extra}]')}"
    folder = "." if checkout == Path.cwd() else checkout
    return f"pip install -e {shlex.quote(f'{folder}[{extra}]')}"


def installed(package: str) -> bool:
    """Whether Python finds a module with this name."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def require(what: str, needs: Mapping[str, Iterable[str]]) -> None:
    """Raises MissingBackend if packages are missing. what: needs them. needs: extra -> packages."""
    missing = {extra: absent for extra, packages in needs.items() if (absent := lacking(packages))}
    if missing:
        names = ", ".join(package for absent in missing.values() for package in absent)
        raise MissingBackend(f"{what} needs {names}: {install(','.join(missing))}")


def lacking(packages: Iterable[str]) -> list[str]:
    """Returns the packages that are not installed."""
    return [package for package in packages if not installed(package)]


@functools.cache
def _checkout() -> Path | None:
    """Returns the folder of an editable install, or None (`direct_url.json`, PEP 610)."""
    # in a checkout, the egg-info comes first, but has no RECORD and no URL
    found = next((one for one in distributions(name=NAME) if one.read_text("RECORD") is not None), None)
    with contextlib.suppress(ValueError):
        said = json.loads((found and found.read_text("direct_url.json")) or "{}")
        if said.get("dir_info", {}).get("editable"):
            return Path(unquote(urlsplit(said["url"]).path))
    return None
