"""An encoder without a decoder, through every door of Keras."""

from functools import partial

import numpy as np
import tensorflow as tf

from impl_tf.framework import keras
from impl_tf.programs.compiled import compiled

from .tf_models import BOTH, CLASSES, MASK, MASKED, SEGMENT, SOURCE, STATES, loaded, loss, reference, right, same, topic, trained

TOPIC = topic("An encoder-only model")
KINDS = {"classes": CLASSES, "a masked-language head": MASKED, "no head": STATES}
MAPPING = {"source": SOURCE, "segment_bs": SEGMENT, "source_mask_bs": MASK}


def is_called(config) -> None:
    model = loaded(config)
    right(model(SOURCE), config)
    right(model.predict(MAPPING, verbose=0), config, segment_bs=SEGMENT, source_mask_bs=MASK)
    assert model.compute_output_shape((4, 7)) == reference(config).shape


def is_trained(config) -> None:
    model, wanted = loaded(config), reference(config)
    label = np.zeros(wanted.shape) if config is STATES else wanted.argmax(-1)
    measure = keras.losses.MeanSquaredError(dtype="float64") if config is STATES else loss()
    trained(model, loss=measure, optimizer="adam")
    before = model.evaluate(SOURCE, label, verbose=0)
    same(before, measure(label, wanted), 1e-6)
    model.fit(SOURCE, label, epochs=5, verbose=0)
    assert model.evaluate(SOURCE, label, verbose=0) < before


def is_saved(config, folder) -> None:
    loaded(config).export(folder, verbose=False)
    served = tf.saved_model.load(folder)
    right(served.serve(SOURCE), config)
    right(served.serve(SOURCE[:2, :5]), config, source=SOURCE[:2, :5])


def is_a_layer(config) -> None:
    model, inputs = loaded(config), keras.Input((None,), dtype="int64")
    for run in (keras.Model(inputs, model(inputs)), tf.function(model), compiled(model)):
        right(run(tf.constant(SOURCE)), config)


ACTIONS_OF_ALL = {
    "`model(source)`, `predict`, segments and masks in the mapping": is_called, "`fit` and `evaluate`": is_trained,
    "`export`, SavedModel": is_saved, "the functional API, `tf.function`, `compiled(model)`": is_a_layer,
}  # fmt: skip
for kind, config in KINDS.items():
    for action, run in ACTIONS_OF_ALL.items():
        TOPIC.works(f"with {kind}: {action}", partial(run, config), sample=config is CLASSES and run is is_called)


TOPIC.refused(
    "with two heads: `model(source)`", "with two heads is called by `classify` or `masked_language_logits`", lambda: loaded(BOTH)(SOURCE)
)


@TOPIC.works("with two heads: `model.classify(source)`, `model.masked_language_logits(source)`")
def _() -> None:
    model = loaded(BOTH)
    assert model.classify(SOURCE).shape == (4, 3) and model.masked_language_logits(SOURCE).shape == (4, 7, 23)
