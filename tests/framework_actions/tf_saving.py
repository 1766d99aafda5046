"""Files of Keras and TensorFlow, SavedModel and LiteRT."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest

from .tf_models import CONFIG, GPT2, LABELS, PAIR, SOURCE, TARGET, Transformer, keras, loaded, right, same, tf, topic, trained

FILES, SAVED, LITERT = map(topic, ("Files", "SavedModel", "LiteRT"))
FIXED = [
    keras.InputSpec(shape=(None, ids.shape[1]), dtype="int64", name=name) for name, ids in zip(("source", "target"), PAIR, strict=True)
]


@FILES.works("`model.save('model.keras')`, `keras.models.load_model`")
def _(folder) -> None:
    loaded().save(folder / "model.keras")
    right(keras.models.load_model(folder / "model.keras")(*PAIR))


@FILES.works("`.keras` of a compiled model: the optimiser goes on")
def _(folder) -> None:
    model = trained(loaded(), optimizer="adam")
    model.train_on_batch(PAIR, LABELS)
    model.save(folder / "model.keras")
    again = keras.models.load_model(folder / "model.keras")
    for each in (model, again):
        each.train_on_batch(PAIR, LABELS)
    same(again(*PAIR), model(*PAIR), 1e-6)  # Keras saves the rate in float32


@FILES.works("`save_weights`, `load_weights`: `.weights.h5`, and `.weights.json` in shards")
def _(folder) -> None:
    for name, options in (("model.weights.h5", {}), ("model.weights.json", {"max_shard_size": 1e-5})):
        loaded().save_weights(folder / name, **options)
        model = Transformer(CONFIG, dtype="float64")
        model.build()
        model.load_weights(folder / name)
        right(model(*PAIR))


@FILES.refused("`load_weights` of another config", "A total of")
def _(folder) -> None:
    loaded().save_weights(folder / "model.weights.h5")
    loaded(CONFIG.replace(feed_forward_width=14)).load_weights(folder / "model.weights.h5")


@FILES.works("`model.to_json`, `keras.models.model_from_json`")
def _() -> None:
    assert keras.models.model_from_json(loaded().to_json()).config == CONFIG


@FILES.works("`pickle` and `copy.deepcopy`")
def _(model) -> None:
    right(pickle.loads(pickle.dumps(model))(*PAIR))
    right(copy.deepcopy(model)(*PAIR))


@FILES.works("`tf.train.Checkpoint` of a model with another layer in place of one")
def _(folder) -> None:
    model, again = Transformer(CONFIG, dtype="float64"), Transformer(CONFIG, dtype="float64")
    model.encoder.layers_0 = type(model.encoder.layers_0)(CONFIG, dtype="float64")
    expected = model(*PAIR)
    tf.train.Checkpoint(model=model).write(str(folder / "saved"))
    tf.train.Checkpoint(model=again).read(str(folder / "saved"))
    same(again(*PAIR), expected)


@FILES.works("`tf.train.CheckpointManager` with an optimiser's moments")
def _(folder) -> None:
    models = [trained(loaded(), optimizer="adam", run_eagerly=True) for _ in range(2)]
    models[0].train_on_batch(PAIR, LABELS)
    models[1].optimizer.build(models[1].trainable_variables)
    checkpoints = [tf.train.Checkpoint(model=model, optimizer=model.optimizer) for model in models]
    tf.train.CheckpointManager(checkpoints[0], str(folder), 1).save()
    assert tf.train.CheckpointManager(checkpoints[1], str(folder), 1).restore_or_initialize()
    for model in models:
        model.train_on_batch(PAIR, LABELS)
    same(models[1](*PAIR), models[0](*PAIR))


@SAVED.works("`model.export(folder)` before the first call: any batch and lengths", sample=True)
def _(folder) -> None:
    loaded().export(folder, verbose=False)
    served = tf.saved_model.load(folder)
    for pair in (PAIR, (SOURCE[:2, :3], TARGET[:2, :4])):
        right(served.serve(*pair), source=pair[0], target=pair[1])


@SAVED.works("`keras.export.ExportArchive` with an endpoint of `encode`")
def _(folder, model) -> None:
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("encode", model.encode, [tf.TensorSpec([None, None], tf.int64)])
    archive.write_out(folder, verbose=False)
    served = tf.saved_model.load(folder)
    same(served.encode(SOURCE), model.encode(SOURCE))


@SAVED.works("`tf.saved_model.save` with a signature")
def _(folder, model) -> None:
    free = tf.TensorSpec([None, None], tf.int64)
    serve = tf.function(lambda source, target: {"logits": model(source, target)}, input_signature=[free, free])
    tf.saved_model.save(model, str(folder), signatures={"serving_default": serve})
    served = tf.saved_model.load(str(folder))
    right(served.signatures["serving_default"](source=tf.constant(SOURCE), target=tf.constant(TARGET))["logits"])


@SAVED.works("`export` of a decoder-only model; `keras.layers.TFSMLayer` runs it")
def _(folder) -> None:
    loaded(GPT2).export(folder, verbose=False)
    right(keras.layers.TFSMLayer(folder, call_endpoint="serve")(tf.constant(TARGET)), GPT2)


def _run(content: bytes, *given: np.ndarray) -> np.ndarray:
    """What a LiteRT model of these lengths gives, by default for PAIR."""
    interpreter = tf.lite.Interpreter(model_content=content)
    places = {detail["shape"][1]: detail["index"] for detail in interpreter.get_input_details()}
    for ids in PAIR:
        interpreter.resize_tensor_input(places[ids.shape[1]], ids.shape)
    interpreter.allocate_tensors()
    for ids in given or PAIR:
        interpreter.set_tensor(places[ids.shape[1]], ids)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@LITERT.works("`model.export('model.tflite', format='litert')` of fixed lengths")
def _(folder) -> None:
    loaded(dtype="float32").export(folder / "model.tflite", format="litert", verbose=False, input_signature=FIXED)
    right(_run((folder / "model.tflite").read_bytes()), tolerance=1e-4)


LITERT.refused(
    "`export(format='litert')` of free lengths",
    "a litert export must have an input_signature of fixed lengths",
    lambda folder: loaded(dtype="float32").export(folder / "model.tflite", format="litert"),
)


@LITERT.works("`TFLiteConverter.from_saved_model` of an export of fixed lengths")
def _(folder) -> None:
    loaded(dtype="float32").export(folder, verbose=False, input_signature=FIXED)
    right(_run(tf.lite.TFLiteConverter.from_saved_model(str(folder)).convert()), tolerance=1e-4)


@LITERT.refused(
    "`TFLiteConverter.from_saved_model` of an export of free lengths", "'tfl.gather' op operand #0 must be tensor of 32-bit float"
)
def _(folder) -> None:
    loaded(dtype="float32").export(folder, verbose=False)
    tf.lite.TFLiteConverter.from_saved_model(str(folder)).convert()


def _function(model: keras.Model) -> tf.types.experimental.ConcreteFunction:
    specs = [tf.TensorSpec([4, ids.shape[1]], tf.int64) for ids in PAIR]
    return tf.function(lambda source, target: model([source, target])).get_concrete_function(*specs)


@LITERT.works("`TFLiteConverter.from_concrete_functions([function])`")
def _() -> None:
    model = loaded(dtype="float32")
    right(_run(tf.lite.TFLiteConverter.from_concrete_functions([_function(model)]).convert()), tolerance=1e-4)


def calls(bad: int) -> None:
    content = tf.lite.TFLiteConverter.from_concrete_functions([_function(loaded(dtype="float32"))]).convert()
    _run(content, np.where(SOURCE[0, 0] == SOURCE, bad, SOURCE), TARGET)


for bad in (-1, 23):
    LITERT.refused(f"a LiteRT model, an id of {bad}", "gather index out of bounds", partial(calls, bad))


@LITERT.stock(
    "`TFLiteConverter.from_concrete_functions([function], model)`",
    "the variables of a model of Keras 3 stay unset, the output is NaN or anything",
)
def _() -> None:
    a, b = keras.Input((7,), dtype="int64"), keras.Input((5,), dtype="int64")
    table = keras.layers.Embedding(23, 8)
    for model in (loaded(dtype="float32"), keras.Model([a, b], keras.layers.Dot((2, 2))([table(b), table(a)]))):
        content = tf.lite.TFLiteConverter.from_concrete_functions([_function(model)], model).convert()
        assert not np.allclose(_run(content), model(list(PAIR)), atol=1e-2)


class Stock(keras.Model):
    """A model of two inputs, of layers of Keras."""

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(23, 8)

    def call(self, source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        return tf.matmul(self.table(target), self.table(source), transpose_b=True)


@LITERT.stock("`TFLiteConverter.from_keras_model` of a model of two inputs", "it finds the shapes of one input only")
def _() -> None:
    for model in (loaded(dtype="float32"), Stock()):
        model(*PAIR)
        with pytest.raises(ValueError, match="the input shapes have not been set"):
            tf.lite.TFLiteConverter.from_keras_model(model).convert()


@LITERT.works("`TFLiteConverter.from_keras_model` of a functional model around it, of fixed lengths")
def _() -> None:
    a, b = (keras.Input((ids.shape[1],), batch_size=4, dtype="int64") for ids in PAIR)
    content = tf.lite.TFLiteConverter.from_keras_model(keras.Model([a, b], loaded(dtype="float32")(a, b))).convert()
    right(_run(content), tolerance=1e-4)


@LITERT.works("`converter.optimizations = [tf.lite.Optimize.DEFAULT]`: weights in 8 bits")
def _() -> None:
    converter = tf.lite.TFLiteConverter.from_concrete_functions([_function(loaded(dtype="float32"))])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    right(_run(converter.convert()), tolerance=0.1)


for mode in ("int8", "int4", "float8"):
    message = f"must be floating, there is no quantized form; got mode '{mode}'"
    LITERT.refused(f"`model.quantize('{mode}')`", message, partial(lambda mode: loaded(dtype="float32").quantize(mode), mode))
