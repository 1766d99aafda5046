"""Everyday use of the TensorFlow port: calls, `fit`, files and precision."""

import copy
import functools
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from kinds import conformance
from user_models import ALONE, CONFIG, GPT2, LABELS, MASK, PAIR, Models, reference, same, tree, values

from impl_tf import weights
from impl_tf.framework import keras
from impl_tf.programs.compiled import compiled
from impl_tf.transformer import Transformer
from reference_numpy import parameters, transformer

MODELS = Models("tf")
loaded, right = MODELS.loaded, MODELS.right
SOURCE, TARGET = PAIR
MAPPING = {"source": SOURCE, "target": TARGET}
QUIET: dict[str, Any] = {"batch_size": 4, "verbose": 0, "shuffle": False}
RATE = 0.5  # learning rate of gradient descent


def loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")


def ready(model: Any, **options: Any) -> Any:
    """Returns the model compiled for gradient descent; eager, since a graph takes seconds."""
    eager = {} if {"run_eagerly", "jit_compile", "steps_per_execution"} & {*options} else {"run_eagerly": True}
    model.compile(**{"optimizer": keras.optimizers.SGD(RATE), "loss": loss()} | eager | options)
    return model


@functools.cache
def expected_step() -> dict[str, np.ndarray]:
    """Returns the reference's parameters after one step of gradient descent on LABELS."""
    logits = reference()
    exponent = np.exp(logits - logits.max(-1, keepdims=True))
    cotangent = (exponent / exponent.sum(-1, keepdims=True) - np.eye(24)[LABELS]) / LABELS.size
    pulled = transformer.transformer_vjp(tree(), CONFIG, *PAIR, cotangent=cotangent)["parameters"]
    gradients = parameters.flatten(pulled)
    return {name: array - RATE * gradients[name] for name, array in values().items()}


def stepped(model: Any, tolerance: float = 1e-9) -> None:
    """Asserts that the model has taken the reference's step."""
    found = weights.export(model, CONFIG)
    for name, array in expected_step().items():
        same(found[name], array, tolerance)


def test_a_model_takes_ids_as_keras_models_do() -> None:
    model = loaded()
    for dtype in ("int32", "int64", "uint8"):
        same(model(SOURCE.astype(dtype), tf.constant(TARGET, dtype)), reference())
    for one in (list(PAIR), PAIR, MAPPING, MAPPING | {"source_mask_bs": SOURCE != 0}):
        same(model(one), reference())
    masks = {"source_mask_bs": MASK, "target_mask_bt": TARGET > 3}
    right(model, **masks)
    same(model(MAPPING | masks), reference(**masks))
    for given in (PAIR, MAPPING, tf.data.Dataset.from_tensor_slices((MAPPING,)).batch(2)):
        same(model.predict(given, batch_size=2, verbose=0), reference())
    decoder = loaded(GPT2)
    for ids in ((TARGET,), (None, TARGET), ({"target": TARGET},)):
        same(decoder(*ids), reference(GPT2))


def test_ids_that_do_not_fit_are_refused_at_every_door() -> None:
    model, ragged = loaded(), tf.ragged.constant([[1, 2], [3]])
    doors = [
        lambda: model(ragged, TARGET[:2]), lambda: model.encode(ragged), lambda: compiled(model)(ragged, TARGET[:2]),
        lambda: model.predict({"source": ragged, "target": TARGET[:2]}, verbose=0),
        lambda: model.source_embedding(ragged), lambda: model(tf.sparse.from_dense(SOURCE), TARGET),
    ]  # fmt: skip
    for door in doors:
        with pytest.raises(ValueError, match="dense tensors"):
            door()
    with pytest.raises(ValueError, match="source"):
        model(MAPPING | {"source_mask": MASK})
    with pytest.raises(Exception, match=r"not in \[0, 24\)"):
        tf.function(model)(tf.constant(SOURCE + 500), tf.constant(TARGET))


def test_ids_outside_the_table_are_nan_under_xla() -> None:
    source = SOURCE.copy()
    source[0, 0], source[1, 2] = 500, -1
    found = tf.function(loaded().encode, jit_compile=True)(tf.constant(source)).numpy()
    assert np.isnan(found[:2]).any(axis=(1, 2)).all()
    same(found[2:], transformer.encode(tree(), CONFIG, SOURCE)[2:])


def test_one_model_serves_several_threads() -> None:
    model = loaded()
    with ThreadPoolExecutor(4) as pool:
        for logits in pool.map(lambda _: model(*PAIR), range(4)):
            same(logits, reference())


DATA: dict[str, Any] = {
    "tuple": lambda: (PAIR, LABELS), "list": lambda: (list(PAIR), LABELS), "dict": lambda: (MAPPING, LABELS),
    "dataset": lambda: (tf.data.Dataset.from_tensor_slices((MAPPING, LABELS)).batch(4),),
}  # fmt: skip


@pytest.mark.parametrize("data", ["dict", *map(conformance, ("tuple", "list", "dataset"))])
def test_fit_takes_the_reference_s_step(data: str) -> None:
    given, model = DATA[data](), ready(loaded())
    model.fit(*given, verbose=0, **({} if len(given) == 1 else {"batch_size": 4}))
    stepped(model)


@pytest.mark.conformance
@pytest.mark.parametrize("options", [{"jit_compile": False}, {"jit_compile": True}, {"steps_per_execution": 2}])
def test_fit_in_a_graph(options: dict[str, Any]) -> None:
    model = ready(loaded(), **options)
    model.fit(PAIR, LABELS, **QUIET)
    stepped(model)


@pytest.mark.conformance
def test_fit_and_evaluate_see_every_label_and_use_masks() -> None:
    same(ready(loaded()).evaluate(PAIR, LABELS, batch_size=2, verbose=0), loss()(LABELS, reference()), 1e-6)
    history = ready(loaded()).fit(MAPPING | {"source_mask_bs": MASK}, LABELS, **QUIET).history
    same(history["loss"], loss()(LABELS, reference(source_mask_bs=MASK)), 1e-6)


@pytest.mark.conformance
@pytest.mark.parametrize("config", ALONE)
def test_an_encoder_only_model_at_every_door(config: Any, tmp_path: Any) -> None:
    model, wanted = loaded(config), reference(config)
    more = {"segment_bs": SOURCE % 2, "source_mask_bs": MASK}
    found = model.predict({"source": SOURCE} | more, verbose=0)
    same(found, reference(config, **more))
    inputs = keras.Input((None,), dtype="int64")
    for run in (model, keras.Model(inputs, model(inputs)), tf.function(model), compiled(model, jit_compile=False)):
        same(run(tf.constant(SOURCE)), wanted)
    assert model.compute_output_shape((4, 8)) == wanted.shape
    loaded(config).export(tmp_path, verbose=False)
    served = tf.saved_model.load(tmp_path)
    same(served.serve(SOURCE[:2, :5]), reference(config, source=SOURCE[:2, :5]))
    label = np.zeros(wanted.shape) if config is ALONE[-1] else wanted.argmax(-1)
    measure = keras.losses.MeanSquaredError(dtype="float64") if config is ALONE[-1] else loss()
    before = ready(model, loss=measure, optimizer="adam").evaluate(SOURCE, label, verbose=0)
    same(before, measure(label, wanted), 1e-6)
    model.fit(SOURCE, label, epochs=5, verbose=0)
    assert model.evaluate(SOURCE, label, verbose=0) < before


class Own(Transformer):
    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            total = self.training_loss(*data, training=True)
        self.optimizer.apply(tape.gradient(total, self.trainable_variables), self.trainable_variables)
        return {"cross_entropy": total}


@pytest.mark.conformance
def test_a_train_step_and_a_loop_of_one_s_own() -> None:
    model = Own(CONFIG, dtype="float64")
    weights.load(model, values(), CONFIG)
    found = ready(model).fit(*PAIR, **QUIET).history["cross_entropy"]
    same(found, transformer.training_loss(tree(), CONFIG, *PAIR))
    right(model)
    model, optimizer = loaded(), keras.optimizers.SGD(RATE)

    @tf.function
    def step(source: Any, target: Any, label: Any) -> None:
        with tf.GradientTape() as tape:
            total = loss()(label, model(source, target, training=True))
        optimizer.apply(tape.gradient(total, model.trainable_variables), model.trainable_variables)

    optimizer.build(model.trainable_variables)
    step(*PAIR, LABELS)
    stepped(model)


def moved(before: Any, after: Any) -> dict[str, bool]:
    """Returns whether each parameter has changed, except the key biases, which have no effect."""
    old, new = (weights.export(model, CONFIG) for model in (before, after))
    return {name: bool((x != new[name]).any()) for name, x in old.items() if not name.endswith("key.bias")}


@pytest.mark.conformance
def test_seeds_decide_what_drops_and_nothing_drops_in_evaluation() -> None:
    config, found = CONFIG.replace(dropout_rate=0.5), []
    for _ in range(2):
        keras.utils.set_random_seed(5)
        model = loaded(config)
        found += [float(model.training_loss(*PAIR, training=True)) for _ in range(2)]
    assert found[0] == found[2] != found[1] == found[3]
    same(model.predict(PAIR, verbose=0), reference(config))


@pytest.mark.parametrize("name", ["AdamW", *map(conformance, ("Adafactor", "Lion", "Muon", "RMSprop"))])
def test_optimizers_move_every_parameter_of_a_tied_model(name: str) -> None:
    optimizer = getattr(keras.optimizers, name)(1e-3)
    model = ready(loaded(dtype="float32"), optimizer=optimizer)
    model.train_on_batch(PAIR, LABELS)
    assert all(moved(loaded(dtype="float32"), model).values())
    right(model)


def test_parameters_are_excluded_from_weight_decay_by_name() -> None:
    model, spared = loaded(), ("bias", "scale", "offset")
    optimizer = keras.optimizers.AdamW(0.0625, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=[*spared])
    optimizer.apply([tf.zeros_like(x) for x in model.trainable_variables], model.trainable_variables)
    for name, array in weights.export(model, CONFIG).items():
        same(array, values()[name] * (1 if name.endswith(spared) else 1 - 0.0625 * 0.5))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", conformance("mixed_float16")])
def test_mixed_policies_train_float32_parameters(policy: str) -> None:
    model = Transformer(CONFIG, dtype=keras.DTypePolicy(policy))
    weights.load(model, values(dtype="float32"), CONFIG)
    dtype = policy.removeprefix("mixed_")
    assert {x.dtype for x in model.trainable_variables} == {"float32"} and model(*PAIR).dtype.name == dtype
    same(tf.cast(model(*PAIR), tf.float64), reference(), 0.5)
    ready(model).fit(PAIR, LABELS, **QUIET)
    stepped(model, 0.05)


@pytest.mark.parametrize("mode", ["full", conformance("list_of_layers")])
def test_recomputation_drops_the_same_again(mode: str) -> None:
    config, found = CONFIG.replace(dropout_rate=0.3, attention_dropout_rate=0.2), []
    for own in (None, mode):
        with keras.RematScope(mode=own, layer_names=["layers_0"], output_size_threshold=8):
            model = loaded(config)
        for index, seed in enumerate(model.non_trainable_variables):
            seed.assign([index, 0])
        with tf.GradientTape() as tape:
            total = model.training_loss(*PAIR, training=True)
        gradients = tape.gradient(total, model.trainable_variables)
        found.append([total, *map(tf.convert_to_tensor, gradients)])
    for one, other in zip(*found, strict=True):
        same(one, other)


@pytest.mark.conformance
def test_copies_and_files_have_the_numbers(tmp_path: Any) -> None:
    model = loaded()
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        same(again(*PAIR), reference())
    assert keras.models.model_from_json(model.to_json()).config == CONFIG
    for again in (Transformer.from_config(model.get_config()), keras.models.clone_model(model)):
        again.build()
        again.set_weights(model.get_weights())
        same(again(*PAIR), reference())
    for name, options in (("a.weights.h5", {}), ("a.weights.json", {"max_shard_size": 1e-5})):
        model.save_weights(tmp_path / name, **options)
        again = Transformer(CONFIG, dtype="float64")
        again.build()
        again.load_weights(tmp_path / name)
        same(again(*PAIR), reference())
    with pytest.raises(ValueError):
        loaded(CONFIG.replace(feed_forward_width=14)).load_weights(tmp_path / "a.weights.h5")


@pytest.mark.conformance
def test_training_goes_on_from_a_file(tmp_path: Any) -> None:
    model = ready(loaded(), optimizer="adam")
    model.train_on_batch(PAIR, LABELS)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, again):
        each.train_on_batch(PAIR, LABELS)
        same(each(*PAIR), model(*PAIR), 1e-6)  # Keras saves the rate in float32
    assert np.abs(model(*PAIR) - reference()).max() > 1e-3
