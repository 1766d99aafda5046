"""Self-contained HTML pages: the templates that all of them share."""

from typing import Any


def environment(package: str, *others: str) -> Any:
    """Returns a Jinja environment for the templates in a package's folder `page`.

    Templates extend `base.html.jinja` and provide `data`. others: packages whose templates, styles
    and scripts they include. Raises ModuleNotFoundError without Jinja2, which the extra `report`
    installs.
    """
    import jinja2

    own = [jinja2.PackageLoader(name, "page") for name in (package, *others)]
    loader = jinja2.ChoiceLoader([*own, jinja2.PackageLoader(__name__, "")])
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
