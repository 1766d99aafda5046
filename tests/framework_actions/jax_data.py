"""The configs of the actions of Flax users, and what their models are given."""

import numpy as np

from reference_numpy import preset

SIZES = {
    "source_vocabulary": 24, "target_vocabulary": 24, "model_width": 8, "heads": 2, "key_value_heads": 2, "key_size": 4, "value_size": 4,
    "feed_forward_width": 12, "dropout_rate": 0.0, "attention_dropout_rate": 0.0,
}  # fmt: skip
CONFIG = preset("tiny", **SIZES, encoder_layers=1, decoder_layers=1, attention_bias=True, output_bias=True)
GPT2 = preset("gpt2_small", **SIZES, decoder_layers=1, max_positions=16)
BOTH = preset("bert_base", **SIZES, encoder_layers=1, max_positions=16, classes=3, classifier_dropout_rate=0.0)  # both heads
CLASSES, MASKED = BOTH.replace(masked_language_head=False), BOTH.replace(classes=0)
STATES = CLASSES.replace(classes=0, pooler=False)

RNG = np.random.default_rng(0)
PAIR = SOURCE, TARGET = RNG.integers(1, 24, (4, 8)), RNG.integers(1, 24, (4, 5))
SOURCE[0, 6:] = SOURCE[2, 3:] = TARGET[1, 3:] = 0  # the padding id of CONFIG
LABELS = np.array([2, 0, 1, 1])
SMOOTHING = 0.1
SEARCH = {"start_id": 1, "end_id": 2, "max_new_tokens": 5}
