"""Small models of the three ports for tests of everyday workflows, compared with the reference."""

from typing import Any

import flat
import numpy as np
from backends import Backend

from reference_numpy import TransformerConfig, decoding, parameters, preset
from reference_numpy.strategy import Strategy

SIZES: dict[str, Any] = dict.fromkeys(("dropout_rate", "attention_dropout_rate"), 0.0) | {
    "source_vocabulary": 24, "target_vocabulary": 24, "model_width": 8, "heads": 2,
    "key_value_heads": 2, "key_size": 4, "value_size": 4, "feed_forward_width": 12,
}  # fmt: skip
CONFIG = preset("tiny", **SIZES, encoder_layers=1, decoder_layers=1).replace(attention_bias=True, output_bias=True)
UNTIED = CONFIG.replace(share_embeddings=False, tie_logits=False)
GPT2 = preset("gpt2_small", **SIZES, decoder_layers=1, max_positions=16)
BOTH = preset("bert_base", **SIZES, encoder_layers=1, max_positions=16, classes=3).replace(classifier_dropout_rate=0.0, epsilon=1e-5)
CLASSES, MASKED = BOTH.replace(masked_language_head=False), BOTH.replace(classes=0)
STATES = CLASSES.replace(classes=0, pooler=False)
ALONE = CLASSES, MASKED, STATES

RNG = np.random.default_rng(0)
PAIR = SOURCE, TARGET = RNG.integers(1, 24, (4, 8)), RNG.integers(1, 24, (4, 5))
SOURCE[0, 6:] = SOURCE[2, 3:] = TARGET[1, 3:] = 0  # the padding id
LABELS = RNG.integers(1, 24, (4, 5))
MASK = SOURCE > 4
SEARCH: dict[str, Any] = {"start_id": 1, "end_id": 2, "max_new_tokens": 5}
TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 0.5, "float16": 0.05}


def values(config: TransformerConfig = CONFIG, dtype: Any = "float64", seed: int = 3) -> dict[str, np.ndarray]:
    """Returns canonical parameters with nonzero biases and offsets."""
    rng, shapes = np.random.default_rng(seed), parameters.shapes(config)
    return {name: (0.5 * rng.standard_normal(shape)).astype(dtype) for name, shape in shapes.items()}


def tree(arrays: dict[str, np.ndarray] | None = None) -> dict[str, Any]:
    """Returns parameters as the reference takes them, in float64."""
    return parameters.nest({name: np.asarray(x, np.float64) for name, x in (arrays or values()).items()})


def inputs(config: TransformerConfig) -> dict[str, Any]:
    """Returns the ids that a model with this config takes."""
    given: dict[str, Any] = {"source": SOURCE if config.encoder_layers else None}
    return given | ({"target": TARGET} if config.decoder_layers else {})


def reference(config: TransformerConfig = CONFIG, arrays: Any = None, **changed: Any) -> np.ndarray:
    """Returns the output of the reference's whole model, or of the head of an encoder-only model."""
    nested, given = tree(arrays or values(config)), inputs(config) | changed
    if config.decoder_layers:
        return flat.transformer(nested, config, **given)
    if config.classes:
        return flat.classify(nested, config, **given)
    head = flat.masked_language_logits if config.masked_language_head else flat.encode
    return head(nested, config, **given)


def same(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    one, other = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def differs(one: Any, other: Any) -> None:
    assert np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).max() > 1e-3


class Models:
    """The small models of one port."""

    def __init__(self, framework: str) -> None:
        self.backend = Backend(framework)
        self.weights = self.backend.weights

    def loaded(self, config: TransformerConfig = CONFIG, dtype: str = "float64", seed: int = 3) -> Any:
        """Returns a model in evaluation mode with the parameters of `values`."""
        return self.backend.loaded(config, values(config, dtype, seed))

    def output(self, call: Any, config: TransformerConfig = CONFIG, **changed: Any) -> np.ndarray:
        """Returns the output for the ids of a config as an array."""
        given = inputs(config) | changed
        named = {name: x if x is None else self.weights.from_numpy(x) for name, x in given.items()}
        named = self.backend.texts(**named) if given.keys() - {"source", "target"} else named
        sides = [named.pop(name, None) for name in ("source", "target")]
        sides = sides if config.decoder_layers else sides[:1]
        return np.asarray(self.weights.to_numpy(call(*sides, **named)), np.float64)

    def right(self, model: Any, call: Any = None, tolerance: float = 0.0, config: Any = None, **changed: Any) -> None:
        """Checks that the model, or a call made of it, matches the reference with the exported parameters."""
        config = config or model.config
        exported = self.weights.export(model, config)
        limit = tolerance or TOLERANCES[str(next(iter(exported.values())).dtype)]
        same(self.output(call or model, config, **changed), reference(config, exported, **changed), limit)

    def tokens(self, model: Any, searcher: Any = None) -> list[list[int]]:
        """Returns the tokens of a greedy search."""
        searcher = searcher or self.backend.part("decoding").Searcher(model)
        source = self.weights.from_numpy(SOURCE)
        return np.asarray(searcher.greedy_search(source, SEARCH)["token_bn"]).tolist()

    def searched(self, model: Any) -> None:
        """Checks that a greedy search finds the reference's tokens with the exported parameters."""
        arrays = tree(self.weights.export(model, model.config))
        strategy = Strategy.of(SEARCH, model.config)
        found = decoding.greedy_search(arrays, model.config, SOURCE, strategy)["token_bn"]
        assert self.tokens(model) == found.tolist()
