"""Entries of config.json that a graph cannot contain: numbers that a model of this config computes with, and that are nowhere in it."""

from collections.abc import Mapping
from typing import Any

from reference_numpy import TransformerConfig

from ..constants.reading import CONTRIBUTED, Constants
from . import numbers, rotary, sizes
from .evidence import Evidence, Finding

__all__ = ["Finding", "findings"]


def findings(config: TransformerConfig, constants: Constants, config_json: Mapping[str, Any] | None = None) -> list[Finding]:
    """Returns the entries that the graph cannot contain, in the order of the config's fields; each says what was looked for.

    A number that a converter may have folded, or that every graph has, gives no finding; so the absence of findings proves nothing.
    config_json: names the entries, and says their values.
    """
    if constants.reason:
        return []
    evidence = Evidence(config, constants, config_json or {})
    found = [*sizes.findings(evidence)]
    other_heads = any(finding.field in ("model_width", "heads", "key_size") for finding in found)
    if not constants.rounded and (not constants.opaque or constants.opaque.startswith(CONTRIBUTED)):
        found += numbers.findings(evidence)
        found += () if other_heads else rotary.findings(evidence)  # how many features rotate is not known
    order = [*config.to_dict()]
    return sorted(found, key=lambda finding: order.index(finding.field))
