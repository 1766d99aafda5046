"""The environment of a measurement: processor, cores, system and versions."""

import importlib.metadata
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...common.processes import cores

PACKAGES = (
    "numpy", "torch", "tensorflow", "tensorflow-cpu", "keras", "keras-hub", "jax", "flax", "transformers", "ctranslate2", "onnxruntime",
)  # fmt: skip


def environment(threads: int, described: Mapping[str, str]) -> dict[str, str]:
    """Describes the environment of a measurement. described: threads or device by framework."""
    return {
        "CPU": _cpu(),
        "cores": f"{cores()}; {threads} threads per row",
        "system": platform.platform(),
        **{name: text for name, text in described.items() if text},
        "versions": ", ".join([f"Python {platform.python_version()}", *_versions()]),
    }


def _cpu() -> str:
    """Returns the processor's name, on Linux from /proc, which `platform` does not read."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _versions() -> Iterable[str]:
    for package in PACKAGES:
        try:
            yield f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue
