"""Calls of the model: arguments, ids, graphs."""

import concurrent.futures
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from impl_tf.programs.compiled import compiled
from reference_numpy import transformer

from .tf_models import CONFIG, GPT2, MASK, PAIR, SOURCE, TARGET, keras, loaded, right, same, tf, topic, tree

CALL = topic("Calls")


@CALL.works("`model(source, target)`, arrays or tensors of any integer dtype", sample=True)
def _(model) -> None:
    for dtype in ("int32", "int64", "uint8"):
        right(model(SOURCE.astype(dtype), tf.constant(TARGET, dtype)))


@CALL.works("`model([source, target])`, `model((source, target))`, `model({'source': ..., 'target': ...})`")
def _(model) -> None:
    for one in (list(PAIR), PAIR, {"target": TARGET, "source": SOURCE}):
        right(model(one))


CALL.works(
    "`model(source, target, source_mask_bs=..., target_mask_bt=...)`",
    lambda: right(loaded()(*PAIR, source_mask_bs=MASK, target_mask_bt=TARGET > 3), source_mask_bs=MASK, target_mask_bt=TARGET > 3),
)
CALL.works(
    "masks in the mapping: `model({'source': ..., 'target': ..., 'source_mask_bs': ...})`",
    lambda: right(loaded()({"source": SOURCE, "target": TARGET, "source_mask_bs": MASK}), source_mask_bs=MASK),
    sample=True,
)
CALL.refused(
    "a mapping with another name",
    "input must be one of source, target, source_mask_bs",
    lambda: loaded()({"source": SOURCE, "target": TARGET, "source_mask": MASK}),
)


@CALL.works("a decoder-only model: `model(target)` and `model(None, target)`")
def _() -> None:
    model = loaded(GPT2)
    for given in ((TARGET,), (None, TARGET), ({"target": TARGET},)):
        right(model(*given), GPT2)
    right(model.predict(TARGET, verbose=0), GPT2)


@CALL.works("`model.predict` of a tuple, a list, a dict and a `tf.data.Dataset`")
def _(model) -> None:
    pair = {"source": SOURCE, "target": TARGET}
    for given in (PAIR, list(PAIR), pair, tf.data.Dataset.from_tensor_slices((pair,)).batch(2)):
        right(model.predict(given, batch_size=2, verbose=0))


CALL.works("`model.predict_on_batch`", lambda: right(loaded().predict_on_batch(PAIR)))
CALL.refused("`model.predict(source)`", "the model must be given source and target", lambda: loaded().predict(SOURCE, verbose=0))


@CALL.works("`tf.function(model)` of free lengths: one trace for all", sample=True)
def _(model) -> None:
    free = tf.TensorSpec([None, None], tf.int64)
    run = tf.function(lambda source, target: model(source, target), input_signature=[free, free])
    for rows in (slice(0, 4), slice(1, 3)):
        pair = SOURCE[rows, :6], TARGET[rows, :4]
        right(run(*pair), source=pair[0], target=pair[1])
    assert run.experimental_get_tracing_count() == 1


CALL.works("`tf.function(model, jit_compile=True)`", lambda: right(tf.function(loaded(), jit_compile=True)(*PAIR)))
CALL.refused(
    "an id outside the table within `tf.function`, on a CPU",
    "is not in [0, 23)",
    lambda: tf.function(loaded())(tf.constant(SOURCE * 0 + 500), tf.constant(TARGET)),
)


@CALL.works("ids outside the table under XLA: the row is NaN, the others are right", sample=True)
def _() -> None:
    source = SOURCE.copy()
    source[0, 0], source[1, 2] = 500, -1
    logits = tf.function(loaded().encode, jit_compile=True)(tf.constant(source)).numpy()
    assert np.isnan(logits[:2]).any(axis=(1, 2)).all()
    same(logits[2:], transformer.encode(tree(), CONFIG, SOURCE)[2:])


@CALL.works("soft one-hot rows for ids, and their gradient")
def _() -> None:
    soft = tf.one_hot(SOURCE, 23, dtype=tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(soft)
        logits = loaded()(soft, TARGET)
    right(logits)
    expected = transformer.transformer_vjp(tree(), CONFIG, soft.numpy(), TARGET, cotangent=np.ones(logits.shape))["source"]
    same(tape.gradient(logits, soft), expected)


@CALL.stock("lists of lists for ids", "it takes lists apart, and refuses their numbers as positional arguments")
def _() -> None:
    for layer in (loaded(), keras.layers.Embedding(23, 8)):
        with pytest.raises(ValueError, match="Only input tensors may be passed as positional arguments"):
            layer(SOURCE.tolist())


DENSE = "ids and masks must be dense tensors, whose shorter rows are padded; got a"


RAGGED = {
    "model(source, target)": lambda model, ragged: model(ragged, TARGET[:2]),
    "model.encode(source)": lambda model, ragged: model.encode(ragged),
    "compiled(model)": lambda model, ragged: compiled(model)(ragged, TARGET[:2]),
    "model.predict": lambda model, ragged: model.predict({"source": ragged, "target": TARGET[:2]}, verbose=0),
    "model.source_embedding(source)": lambda model, ragged: model.source_embedding(ragged),
}
for name, call in RAGGED.items():
    given = partial(call, ragged=tf.ragged.constant([[1, 2], [3]]))
    CALL.refused(f"a `tf.RaggedTensor` for ids, `{name}`", f"{DENSE} RaggedTensor", given, sample=name.startswith("model("))
CALL.refused("a `tf.SparseTensor` for ids", f"{DENSE} SparseTensor", lambda: loaded()(tf.sparse.from_dense(SOURCE), TARGET))


@CALL.works("calls from several threads")
def _(model) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for logits in pool.map(lambda _: model(*PAIR), range(4)):
            right(logits)


@CALL.refused("`KERAS_BACKEND=numpy`", "impl_tf needs Keras on the TensorFlow backend (KERAS_BACKEND=tensorflow); got numpy")
def _() -> None:
    code = "import os, sys, impl_tf; assert 'keras' not in sys.modules; os.environ['KERAS_BACKEND'] = 'numpy'; import impl_tf.transformer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr)
