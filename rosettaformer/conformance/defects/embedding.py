"""Defects of the embedding."""

from typing import Any

from reference_numpy import embedding

from .defect import Defect

__all__ = ["DEFECTS"]

_embedding = embedding.embedding


def _unscaled(parameters: Any, token: Any, scale: bool) -> Any:
    return _embedding(parameters, token, False)


DEFECTS = (
    Defect("EMB1", "the sqrt(d) scale of the embedding is missing", "embedding", "OpenNMT-py#1722", {"embedding.embedding": _unscaled}),
)
