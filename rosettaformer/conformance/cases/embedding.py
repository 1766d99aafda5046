"""Cases of the embedding and the logits."""

from collections.abc import Iterator

import numpy as np

from ..case import Case
from .build import B, Builder, T, rng

__all__ = ["cases"]


def cases(build: Builder) -> Iterator[Case]:
    """Ids and soft one-hot rows, scaled and not; the padding id among the tokens; one position."""
    scaled, plain = build.config(), build.config("keras_lab")
    vocabulary = scaled.source_vocabulary
    ids = rng("embedding ids").integers(0, vocabulary, (B, T))
    ids[0, :2] = 2  # the padding id
    yield build.make("embedding", "ids", scaled, "EMB1 EMB7", token=ids)
    yield build.make("embedding", "ids_unscaled", plain, token=ids)
    yield build.make("embedding", "one_token", scaled, "EMB1", token=ids[:, :1])
    yield build.make("embedding", "int32_ids", scaled, token=ids.astype(np.int32))
    yield build.make("embedding", "every_id", scaled, token=np.arange(vocabulary)[None])
    soft = rng("embedding soft").dirichlet(np.ones(vocabulary), (B, T))
    yield build.make("embedding", "soft_rows", plain, token=soft)
    yield build.make("embedding", "one_hot_rows", scaled, "EMB1", token=np.eye(vocabulary)[ids])
    yield build.make("embedding", "batch_0", scaled, token=ids[:0])
    yield build.make("logits", "bias", scaled, "EMB2 PRC1", x_btd="b t d")
    yield build.make("logits", "no_bias", plain, "EMB2 PRC1", x_btd="b t d")
    yield build.make("logits", "one_token", scaled, "EMB2", x_btd="1 1 d")
