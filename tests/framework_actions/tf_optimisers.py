"""Optimisers and callbacks."""

import tempfile
from pathlib import Path

from .tf_models import ACTIONS, CONFIG, LABELS, PAIR, QUIET, RATE, equals_itself, keras, loaded, moved, same, stepped, tf, trained, weights

OPTIMISERS, CALLBACKS = map(ACTIONS.topic, ("Optimisers", "Callbacks"))


def _optimiser(name: str) -> None:
    @OPTIMISERS.works(f"`keras.optimizers.{name}`")
    def _() -> None:
        model = trained(loaded(dtype="float32"), optimizer=getattr(keras.optimizers, name)(1e-3), run_eagerly=True)
        model.train_on_batch(PAIR, LABELS)
        assert all(moved(loaded(dtype="float32"), model).values())
        equals_itself(model, 1e-4)


for name in ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion", "Muon", "Nadam", "RMSprop"):
    _optimiser(name)


@OPTIMISERS.works("`use_ema=True`, `finalize_variable_values`")
def _() -> None:
    model = trained(loaded(), optimizer=keras.optimizers.SGD(RATE, use_ema=True, ema_momentum=0.0))
    model.fit(PAIR, LABELS, **QUIET)
    stepped(model)


@OPTIMISERS.works("`gradient_accumulation_steps=2`")
def _() -> None:
    model = trained(loaded(), optimizer=keras.optimizers.SGD(RATE, gradient_accumulation_steps=2))
    model.fit(PAIR, LABELS, **QUIET | {"batch_size": 2})
    stepped(model)


@OPTIMISERS.works("`global_clipnorm`")
def _() -> None:
    model = trained(loaded(), optimizer=keras.optimizers.SGD(RATE, global_clipnorm=1e9))
    model.fit(PAIR, LABELS, **QUIET)
    stepped(model)


@OPTIMISERS.works("`AdamW.exclude_from_weight_decay(var_names=['bias', 'scale', 'offset'])`")
def _(model) -> None:
    optimizer = keras.optimizers.AdamW(0.0625, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias", "scale", "offset"])
    variables = model.trainable_variables
    optimizer.apply([tf.zeros_like(variable) for variable in variables], variables)
    before, after = (weights.export(each, CONFIG) for each in (loaded(), model))
    for name, array in before.items():
        same(after[name], array * (1 if name.endswith(("bias", "scale", "offset")) else 1 - 0.0625 * 0.5))


def _callbacks(name: str, make) -> None:
    @CALLBACKS.works(name)
    def _() -> None:
        with tempfile.TemporaryDirectory() as folder:
            model = trained(loaded(), run_eagerly=True)
            model.fit(PAIR, LABELS, **QUIET, epochs=2, validation_data=(PAIR, LABELS), callbacks=[make(Path(folder))])
            equals_itself(model)


_callbacks("`EarlyStopping(restore_best_weights=True)`", lambda _: keras.callbacks.EarlyStopping(patience=0, restore_best_weights=True))
_callbacks("`ReduceLROnPlateau`", lambda _: keras.callbacks.ReduceLROnPlateau(patience=0))
_callbacks("`LearningRateScheduler`", lambda _: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2))
_callbacks("`CSVLogger`", lambda folder: keras.callbacks.CSVLogger(str(folder / "log.csv")))
_callbacks("`BackupAndRestore`", lambda folder: keras.callbacks.BackupAndRestore(str(folder)))
_callbacks("`TerminateOnNaN`", lambda _: keras.callbacks.TerminateOnNaN())


@CALLBACKS.works("`ModelCheckpoint`, of the whole model")
def _() -> None:
    with tempfile.TemporaryDirectory() as folder:
        model, path = trained(loaded(), run_eagerly=True), str(Path(folder) / "model.keras")
        model.fit(PAIR, LABELS, **QUIET, callbacks=[keras.callbacks.ModelCheckpoint(path)])
        stepped(keras.models.load_model(path))


@CALLBACKS.works("`SwapEMAWeights`")
def _() -> None:
    model = trained(loaded(), optimizer=keras.optimizers.SGD(RATE, use_ema=True, ema_momentum=0.0), run_eagerly=True)
    model.fit(PAIR, LABELS, **QUIET, callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)])
    stepped(model)
