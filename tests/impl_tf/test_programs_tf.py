"""Users' programs of the TensorFlow port: tf.function, SavedModel, LiteRT and tf.distribute."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import tensorflow as tf
from user_models import CONFIG, GPT2, PAIR, SOURCE, TARGET, Models, reference, same

from impl_tf.framework import keras

MODELS = Models("tf")
loaded, right = MODELS.loaded, MODELS.right
FREE = tf.TensorSpec([None, None], tf.int64)
SHORTER: dict[str, Any] = {"source": SOURCE[:2, :6], "target": TARGET[:2, :4]}


@pytest.mark.conformance
def test_one_trace_serves_every_shape() -> None:
    model = loaded()
    run = tf.function(lambda source, target: model(source, target), input_signature=[FREE, FREE])
    right(model, run)
    right(model, run, **SHORTER)
    assert run.experimental_get_tracing_count() == 1
    right(model, tf.function(model, jit_compile=True))


@pytest.mark.conformance
def test_saved_models_serve_every_shape(tmp_path: Any) -> None:
    model = loaded()
    loaded().export(tmp_path / "own", verbose=False)
    own = tf.saved_model.load(tmp_path / "own")
    right(model, own.serve)
    right(model, own.serve, **SHORTER)
    loaded(GPT2).export(tmp_path / "decoder", verbose=False)
    layer = keras.layers.TFSMLayer(tmp_path / "decoder", call_endpoint="serve")
    same(layer(tf.constant(TARGET)), reference(GPT2))


@pytest.mark.product
@pytest.mark.conformance
def test_keras_on_another_backend_is_refused() -> None:
    code = "import os, sys, impl_tf; assert 'keras' not in sys.modules; os.environ['KERAS_BACKEND'] = 'numpy'; "
    done = subprocess.run([sys.executable, "-c", code + "import impl_tf.transformer"], capture_output=True, text=True)
    assert done.returncode and "KERAS_BACKEND=tensorflow" in done.stderr


REPLICAS = """
import json, sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import test_programs_tf
print(json.dumps(test_programs_tf.on_replicas(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))))
"""


def on_replicas(strategy: Any) -> list[str]:
    """Checks `fit`, `predict` and a custom loop on two replicas; returns the error without a total."""
    from test_use_tf import LABELS, MAPPING, RATE, Own, ready, stepped, values

    from impl_tf import weights
    from reference_numpy import parameters, transformer

    def made(kind: Any = None) -> Any:
        with strategy.scope():
            model = kind(CONFIG, dtype="float64") if kind else loaded()
            weights.load(model, values(), CONFIG)
            return model if kind else ready(model)

    rows = tf.data.Dataset.from_tensor_slices((MAPPING, LABELS)).batch(4)
    for given, options in (((PAIR, LABELS), {"batch_size": 4}), ((rows,), {})):
        model = made()
        model.fit(*given, verbose=0, shuffle=False, **options)
        stepped(model)
    same(made().predict(PAIR, batch_size=4, verbose=0), reference())
    model = made()

    def step(source: Any, target: Any) -> None:
        own = tf.reduce_sum(tf.cast(target[:, 1:] != 0, tf.int32))
        total = tf.distribute.get_replica_context().all_reduce("SUM", own)
        with tf.GradientTape() as tape:
            part = model.training_loss(source, target, total=total)
        gradients = tape.gradient(part, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)

    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    for batch in strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(PAIR).batch(4)):
        tf.function(lambda batch=batch: strategy.run(step, args=batch))()
    tree = parameters.nest(values())
    pulled = transformer.training_loss_vjp(tree, CONFIG, *PAIR, cotangent=1.0)["parameters"]
    gradients = parameters.flatten(pulled)
    for name, array in weights.export(model, CONFIG).items():
        same(array, values()[name] - RATE * gradients[name])
    model = made(Own)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(RATE), jit_compile=False)
    try:
        model.fit(*PAIR, batch_size=4, verbose=0)
    except ValueError as error:
        return [str(error)]
    return []


@pytest.mark.conformance
def test_replicas_train_as_one_device_and_need_the_total() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", REPLICAS], capture_output=True, text=True, env=environment)
    assert not done.returncode, done.stderr[-3000:]
    (refused,) = json.loads(done.stdout.splitlines()[-1])
    assert "total must be given" in refused
