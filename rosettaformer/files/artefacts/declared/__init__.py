"""Compares a graph with its config and checkpoint without running it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ..constants.reading import CONTRIBUTED, Constants
from . import rotary, weights
from .evidence import Evidence, Finding
from .numbers import numbers, precision, sizes

__all__ = ["OF_GRAPH", "Finding", "findings"]
OF_GRAPH = ("precision", "weights")  # fields of findings that concern no entry


def findings(
    config: TransformerConfig,
    constants: Constants,
    config_json: Mapping[str, Any] | None = None,
    parameters: Mapping[str, np.ndarray] | None = None,
) -> list[Finding]:
    """Returns the entries that the graph cannot contain, then lower precision and wrong weights.

    config_json: names the entries and has their values. parameters: the checkpoint's, by canonical
    name. Numbers that a converter may have folded, or that every graph has, are never reported, so
    the absence of findings proves nothing.
    """
    if constants.reason:
        return []
    evidence = Evidence(config, constants, config_json or {})
    found = [*sizes(evidence)]
    other_heads = any(finding.field in ("model_width", "heads", "key_size") for finding in found)
    if not constants.rounded and (not constants.opaque or constants.opaque.startswith(CONTRIBUTED)):
        found += numbers(evidence)
        found += () if other_heads else rotary.findings(evidence)  # the rotating features are unknown otherwise
    order = [*config.to_dict()]
    found.sort(key=lambda finding: order.index(finding.field))
    return [*found, *precision(evidence), *weights.findings(config, parameters or {}, constants)]
