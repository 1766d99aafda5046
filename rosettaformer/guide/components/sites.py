"""The dropout sites: key path in `keep`, axes, and the config field of the rate."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from reference_numpy import sites

from ...judge.expectation.components import DROPOUT_RATES, OWN, VJP, signature_of, takes_config
from ..site import Page
from .component_arguments import letters_of
from .config_fields import fields
from .facts import CONFIG, HEADS
from .prose import axes_in_words

LENGTHS = {"b": 2, "s": 3, "t": 5}
SIZES = {
    "model_width": 7,
    "heads": 11,
    "key_value_heads": 11,
    "feed_forward_width": 13,
}  # distinct sizes identify the axes


@dataclass(frozen=True)
class Site:
    """A dropout site.

    path: its key path in a whole model's `keep`, with N for a layer's index. letters: the mask's
    axes.

    field: the config field of its rate. component, argument: a component with this dropout, and its
    mask argument.
    """

    path: str
    letters: str
    field: str
    component: str
    argument: str

    @property
    def layer(self) -> str:
        """The key path in a layer's `keep`; empty if the site is not in a layer."""
        return self.path.partition(".layers.N.")[2]


def page() -> Page:
    """Returns the page with the table of the sites."""
    values = {"sites": all_sites(), "takers": takers(), "rates": [fields()[name] for name in DROPOUT_RATES], "in_words": axes_in_words}
    names = ("keep", "keep mask", "dropout site", *DROPOUT_RATES, *(site.path for site in all_sites()))
    summary = "Every place where dropout acts: its key path in keep, its axes, and the config field of its rate."
    return Page("components/keep.html", "Dropout sites", "keep.html.jinja", values, summary, names)


@functools.cache
def all_sites() -> tuple[Site, ...]:
    """Returns all sites that a config may have, in forward order."""
    rates = {field: (number + 1) / 8 for number, field in enumerate(DROPOUT_RATES)}
    found: dict[str, Site] = {}
    for base in (CONFIG, HEADS):
        config = base.replace(**SIZES, **rates)
        for name, shape in sites.shapes(config, *LENGTHS.values()).items():
            path = name.replace(".0.", ".N.")
            field = next(field for field, rate in rates.items() if rate == sites.rate(config, name))
            found.setdefault(path, _site(path, shape, field, LENGTHS | config.sizes))
    return tuple(found.values())


def takers() -> Mapping[str, list[str]]:
    """Returns the components that take `keep`, by kind: model, stack or layer."""
    found: dict[str, list[str]] = {"model": [], "stack": [], "layer": []}
    for component in OWN:
        if not component.endswith(VJP) and takes_config(component) and "keep" in signature_of(component).parameters:
            kind = "layer" if component.endswith("_layer") else "stack" if component in ("encoder", "decoder") else "model"
            found[kind].append(component)
    return found


def _site(path: str, shape: tuple[int, ...], field: str, sizes: Mapping[str, int]) -> Site:
    component, argument = _alone(field)
    own = letters_of(argument, np.ndarray).split()
    letters = (
        own if tuple(sizes.get(letter) for letter in own) == shape else [next(one for one in "bstdhf" if sizes[one] == n) for n in shape]
    )
    return Site(path, " ".join(letters), field, component, argument)


def _alone(field: str) -> tuple[str, str]:
    """Returns the component that takes the rate as an argument, and its mask argument."""
    for component, declared in OWN.items():
        masks = [name for name in signature_of(component).parameters if name.partition("_")[0] == "keep"]
        if field in declared.arguments.values() and masks and not component.endswith(VJP):
            return component, masks[0]
    raise ValueError(f"no component takes {field} and a keep mask as arguments")
