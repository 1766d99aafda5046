"""Cases of the embedding and the logits."""

from collections.abc import Iterator

import numpy as np

from ..case import Case
from .build import B, T, config, make, rng

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    """Ids and soft one-hot rows, scaled and not; the padding id among the tokens; one position."""
    scaled, plain = config(), config("keras_lab")
    vocabulary = scaled.source_vocabulary
    ids = rng("embedding ids").integers(0, vocabulary, (B, T))
    ids[0, :2] = 2  # the padding id
    yield make("embedding", "ids", scaled, "EMB1", token=ids)
    yield make("embedding", "ids_unscaled", plain, token=ids)
    yield make("embedding", "one_token", scaled, "EMB1", token=ids[:, :1])
    yield make("embedding", "int32_ids", scaled, token=ids.astype(np.int32))
    yield make("embedding", "every_id", scaled, token=np.arange(vocabulary)[None])
    soft = rng("embedding soft").dirichlet(np.ones(vocabulary), (B, T))
    yield make("embedding", "soft_rows", plain, token=soft)
    yield make("embedding", "one_hot_rows", scaled, "EMB1", token=np.eye(vocabulary)[ids])
    yield make("embedding", "batch_0", scaled, token=ids[:0])
    yield make("logits", "bias", scaled, x_btd=(B, T, 13))
    yield make("logits", "no_bias", plain, x_btd=(B, T, 13))
    yield make("logits", "one_token", scaled, x_btd=(1, 1, 13))
