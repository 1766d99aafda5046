"""What is there for speed. The files beside this folder hold the model; each calls what it needs from here in one line."""

__all__: list[str] = []
