"""Validates the names of ports on the command line."""

from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

from reference_numpy.suggestions import known

from ..common.backends import PORTS
from ..common.extras import installed
from ..judge.ports.command import PREFIX
from ..judge.ports.port import ENTRY_POINTS


def require_ports(ports: Iterable[str]) -> None:
    """Raises ValueError on a name that is no port; errors inside a port become results later."""
    if absent := [port for port in ports if port.endswith(".py") and not Path(port).is_file()]:
        raise ValueError(f"{', '.join(absent)} does not exist")
    named_by_packages = {point.name for point in entry_points(group=ENTRY_POINTS)}
    named = [port for port in ports if port not in PORTS and port not in named_by_packages and not port.endswith(".py")]
    lost = [port for port in named if not (port.startswith(PREFIX) or installed(port))]
    known("port", lost, [*PORTS, *sorted(named_by_packages - {*PORTS})], "an installed port, a Python file, an importable module")
