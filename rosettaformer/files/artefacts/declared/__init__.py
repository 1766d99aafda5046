"""What a graph shows without being run: entries of config.json that it cannot contain, numbers in a lower precision, other weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ..constants.reading import CONTRIBUTED, Constants
from . import rotary, weights
from .evidence import Evidence, Finding
from .numbers import numbers, precision, sizes

__all__ = ["OF_GRAPH", "Finding", "findings"]
OF_GRAPH = ("precision", "weights")  # what a finding is about that is of no entry


def findings(
    config: TransformerConfig,
    constants: Constants,
    config_json: Mapping[str, Any] | None = None,
    parameters: Mapping[str, np.ndarray] | None = None,
) -> list[Finding]:
    """Returns the entries that the graph cannot contain, in the order of the config's fields; each says what was looked for. Then what it
    computes in a lower precision than it holds, and what it holds in place of the parameters.

    A number that a converter may have folded, or that every graph has, gives no finding; so the absence of findings proves nothing.
    config_json: names the entries, and says their values. parameters: of the checkpoint, by canonical name.
    """
    if constants.reason:
        return []
    evidence = Evidence(config, constants, config_json or {})
    found = [*sizes(evidence)]
    other_heads = any(finding.field in ("model_width", "heads", "key_size") for finding in found)
    if not constants.rounded and (not constants.opaque or constants.opaque.startswith(CONTRIBUTED)):
        found += numbers(evidence)
        found += () if other_heads else rotary.findings(evidence)  # how many features rotate is not known
    order = [*config.to_dict()]
    found.sort(key=lambda finding: order.index(finding.field))
    return [*found, *precision(evidence), *weights.findings(config, parameters or {}, constants)]
