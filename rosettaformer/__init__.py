"""The judge of Transformer ports: checks any of them against the NumPy reference."""

__version__: str


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version(__name__)
