"""Run in a process of its own, since devices are set up once: the model under tf.distribute, on two CPUs or as a worker of two.

Prints a line of JSON for every action: what it found, or the error that it raised.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).parents[1]))

import tensorflow as tf

if "TF_CONFIG" not in os.environ:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
else:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

from framework_actions.tf_models import CONFIG, LABELS, PAIR, RATE, SOURCE, TARGET, loaded, loss, right, stepped, trained, values
from impl_tf import weights
from impl_tf.framework import keras
from impl_tf.transformer import Transformer
from reference_numpy import parameters, transformer

MAPPING = {"source": SOURCE, "target": TARGET}
ROWS = tf.data.Dataset.from_tensor_slices((MAPPING, LABELS))
AUTO = tf.data.experimental.AutoShardPolicy.DATA


def model() -> Transformer:
    with strategy.scope():
        return trained(loaded())


def fit(*data, **options) -> None:
    found = model()
    found.fit(*data, verbose=0, shuffle=False, **options)
    stepped(found)


class Own(Transformer):
    """With a step of its own."""

    total: tf.Tensor | None = None

    def train_step(self, data):
        with tf.GradientTape() as tape:
            part = self.training_loss(*data, total=self.total, training=True)
        self.optimizer.apply(tape.gradient(part, self.trainable_variables), self.trainable_variables)
        return {"part": part}


def train_step(total: int | None) -> None:
    """A step of gradient descent on `training_loss`, against the reference's."""
    with strategy.scope():
        found = Own(CONFIG, dtype="float64")
        weights.load(found, values(), CONFIG)
        found.compile(keras.optimizers.SGD(RATE), jit_compile=False)
    found.total = total
    found.fit(*PAIR, batch_size=4, verbose=0, shuffle=False)
    follows_training_loss(found)


def follows_training_loss(found: Transformer) -> None:
    tree = parameters.nest(values())
    gradients = parameters.flatten(transformer.training_loss_vjp(tree, CONFIG, *PAIR, cotangent=1.0)["parameters"])
    after = weights.export(found, CONFIG)
    worst = max(abs(after[name] - (array - RATE * gradients[name])).max() for name, array in values().items())
    assert worst < 1e-9, worst


def loop() -> None:
    """A loop of one's own: each replica is given the count of all."""
    with strategy.scope():
        found, optimizer = loaded(), keras.optimizers.SGD(RATE)
        optimizer.build(found.trainable_variables)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = AUTO
    rows = tf.data.Dataset.from_tensor_slices(PAIR).batch(4).with_options(options)

    def step(source, target):
        own = tf.size(target[:, 1:])
        total = tf.distribute.get_replica_context().all_reduce("SUM", own)
        with tf.GradientTape() as tape:
            part = found.training_loss(source, target, total=total)
        optimizer.apply(tape.gradient(part, found.trainable_variables), found.trainable_variables)

    for batch in strategy.experimental_distribute_dataset(rows):
        tf.function(lambda batch=batch: strategy.run(step, args=batch))()
    follows_training_loss(found)


def predict() -> None:
    right(model().predict(PAIR, batch_size=4, verbose=0))


def stock() -> None:
    with strategy.scope():
        own = keras.Sequential([keras.layers.Embedding(23, 8), keras.layers.Dense(23)])
        own.compile("sgd", loss(), jit_compile=False)
    own.fit(SOURCE, SOURCE, batch_size=4, verbose=0)


MIRRORED: dict[str, Callable[[], object]] = {
    "fit of a tuple": lambda: fit(PAIR, LABELS, batch_size=4),
    "fit of a dict": lambda: fit(ROWS.batch(4)),
    "predict": predict,
    "train_step with total": lambda: train_step(TARGET[:, 1:].size),
    "train_step without total": lambda: train_step(None),
    "loop": loop,
}
WORKERS: dict[str, Callable[[], object]] = {"loop": loop, "fit": lambda: fit(ROWS.batch(4)), "stock fit": stock}

if __name__ == "__main__":
    for name, action in (WORKERS if "TF_CONFIG" in os.environ else MIRRORED).items():
        try:
            outcome = {"found": action()}
        except Exception as error:
            outcome = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"action": name} | outcome), flush=True)
