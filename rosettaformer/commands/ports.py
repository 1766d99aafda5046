"""Checks ports given on the command line."""

import importlib.util
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

from reference_numpy.suggestions import known

from ..conformance.ports.command import PREFIX
from ..conformance.ports.port import ENTRY_POINTS, PORTS


def require_ports(ports: Iterable[str]) -> None:
    """Raises ValueError if a port cannot even be looked for; problems within one are results."""
    if absent := [port for port in ports if port.endswith(".py") and not Path(port).is_file()]:
        raise ValueError(f"there is no file {', '.join(absent)}")
    installed = {point.name for point in entry_points(group=ENTRY_POINTS)}
    named = [port for port in ports if port not in PORTS and port not in installed and not port.endswith(".py")]
    lost = [port for port in named if not (port.startswith(PREFIX) or importable(port))]
    known("port", lost, [*PORTS, *sorted(installed - {*PORTS})], "an installed port, a Python file, an importable module")


def importable(module: str) -> bool:
    """Whether Python finds a module of that name."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False
