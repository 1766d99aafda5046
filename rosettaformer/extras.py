"""The extras of the package, and the line that installs one."""

__all__ = ["install"]


def install(extra: str) -> str:
    """The line that installs an extra, typed in the folder of the checkout: no package index has rosettaformer."""
    return f"pip install -e '.[{extra}]'"
