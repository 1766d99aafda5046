"""Makes a page for each published model: its choices, the tensors of its checkpoints, and one forward pass through all layers."""

from collections.abc import Iterator
from importlib import resources
from typing import TYPE_CHECKING

from ..code import Code
from ..site import Page
from .following import Pass, followed
from .published import MODELS, Model
from .tensors import rows, total

if TYPE_CHECKING:
    from ..build import Run


def pages(run: "Run") -> Iterator[Page]:
    """Yields the index and the models."""
    lead = "How a checkpoint maps, tensor by tensor, and what one forward pass gives at every layer in four implementations."
    yield Page("models/index.html", "Models", "section.html.jinja", {"lead": lead})
    passes = followed([model.case for model in MODELS])
    for model in MODELS:
        yield _page(model, passes[model.case])


def _page(model: Model, followed: Pass) -> Page:
    tensors = rows(model)
    origin = f"rosettaformer/guide/snippets/models/{model.name}.py"
    snippet = (resources.files("rosettaformer.guide") / "snippets" / "models" / f"{model.name}.py").read_text(encoding="utf-8")
    values = {
        "model": model,
        "choices": model.choices(),
        "tensors": tensors,
        "parameters": total(model),
        "followed": followed,
        "snippet": Code(snippet, origin, caption=f"{model.name}.py"),
    }
    names: tuple[str | tuple[str, str], ...] = (model.name, *model.classes, *((row.name, "#tensors") for row in tensors))
    return Page(f"models/{model.name}.html", model.title, "model.html.jinja", values, model.summary, names)
