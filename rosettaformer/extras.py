"""The extras of the package, and the command that installs one."""


def install(extra: str) -> str:
    """Returns the command that installs an extra from the folder of the checkout: no package index has rosettaformer."""
    return f"pip install -e '.[{extra}]'"
