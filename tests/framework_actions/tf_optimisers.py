"""Optimisers and callbacks."""

from functools import partial

from .tf_models import CONFIG, LABELS, PAIR, QUIET, RATE, equals_itself, keras, loaded, moved, same, stepped, tf, topic, trained, weights

OPTIMISERS, CALLBACKS = map(topic, ("Optimisers", "Callbacks"))


def updates(name: str) -> None:
    model = trained(loaded(dtype="float32"), optimizer=getattr(keras.optimizers, name)(1e-3), run_eagerly=True)
    model.train_on_batch(PAIR, LABELS)
    assert all(moved(loaded(dtype="float32"), model).values())
    equals_itself(model, 1e-4)


for name in ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion", "Muon", "Nadam", "RMSprop"):
    OPTIMISERS.works(f"`keras.optimizers.{name}`", partial(updates, name))


def step_with(batch_size: int = 4, **options) -> None:
    """A step of gradient descent is the reference's."""
    model = trained(loaded(), optimizer=keras.optimizers.SGD(RATE, **options))
    model.fit(PAIR, LABELS, **QUIET | {"batch_size": batch_size})
    stepped(model)


OPTIMISERS.works("`use_ema=True`, `finalize_variable_values`", lambda: step_with(use_ema=True, ema_momentum=0.0))
OPTIMISERS.works("`gradient_accumulation_steps=2`", lambda: step_with(2, gradient_accumulation_steps=2))
OPTIMISERS.works("`global_clipnorm`", lambda: step_with(global_clipnorm=1e9))


@OPTIMISERS.works("`AdamW.exclude_from_weight_decay(var_names=['bias', 'scale', 'offset'])`")
def _(model) -> None:
    optimizer = keras.optimizers.AdamW(0.0625, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias", "scale", "offset"])
    variables = model.trainable_variables
    optimizer.apply([tf.zeros_like(variable) for variable in variables], variables)
    before, after = (weights.export(each, CONFIG) for each in (loaded(), model))
    for name, array in before.items():
        same(after[name], array * (1 if name.endswith(("bias", "scale", "offset")) else 1 - 0.0625 * 0.5))


def fits_with(make, folder) -> None:
    model = trained(loaded(), run_eagerly=True)
    model.fit(PAIR, LABELS, **QUIET, epochs=2, validation_data=(PAIR, LABELS), callbacks=[make(folder)])
    equals_itself(model)


MADE = {
    "EarlyStopping(restore_best_weights=True)": lambda _: keras.callbacks.EarlyStopping(patience=0, restore_best_weights=True),
    "ReduceLROnPlateau": lambda _: keras.callbacks.ReduceLROnPlateau(patience=0),
    "LearningRateScheduler": lambda _: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
    "CSVLogger": lambda folder: keras.callbacks.CSVLogger(str(folder / "log.csv")),
    "BackupAndRestore": lambda folder: keras.callbacks.BackupAndRestore(str(folder)),
    "TerminateOnNaN": lambda _: keras.callbacks.TerminateOnNaN(),
}
for name, make in MADE.items():
    CALLBACKS.works(f"`{name}`", partial(fits_with, make))


@CALLBACKS.works("`ModelCheckpoint`, of the whole model")
def _(folder) -> None:
    path = str(folder / "model.keras")
    trained(loaded(), run_eagerly=True).fit(PAIR, LABELS, **QUIET, callbacks=[keras.callbacks.ModelCheckpoint(path)])
    stepped(keras.models.load_model(path))


@CALLBACKS.works("`SwapEMAWeights`")
def _() -> None:
    model = trained(loaded(), optimizer=keras.optimizers.SGD(RATE, use_ema=True, ema_momentum=0.0), run_eagerly=True)
    model.fit(PAIR, LABELS, **QUIET, callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)])
    stepped(model)
