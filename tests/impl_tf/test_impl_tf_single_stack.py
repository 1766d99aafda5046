"""An encoder-only model and a decoder-only model in the TensorFlow port: what they are made of, saving, checks, searches and training."""

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")

from test_impl_tf import BERT, GPT2, loaded, random_parameters  # noqa: E402

from impl_tf.decoding import Searcher  # noqa: E402
from impl_tf.framework import keras  # noqa: E402
from impl_tf.programs.compiled import compiled  # noqa: E402
from impl_tf.training import Trainer  # noqa: E402
from impl_tf.transformer import Transformer  # noqa: E402
from reference_numpy import decoding, parameters  # noqa: E402
from reference_numpy import training as reference  # noqa: E402
from reference_numpy.recipe import PAPER  # noqa: E402

CLASSES = BERT.replace(classes=4, masked_language_head=False, dropout_rate=0.3, classifier_dropout_rate=0.5)
IDS = np.random.default_rng(0).integers(0, 23, (4, 6))
LEFT = np.arange(6) >= np.array([[0], [2], [5], [1]])


@pytest.mark.parametrize("config", [BERT, GPT2], ids=["bert", "gpt2"])
def test_a_model_has_the_parts_of_its_config_alone(config):
    names = {path.split(".")[0] for path in parameters.axes(config)}
    model = Transformer(config)
    parts = {name for name, part in vars(model).items() if isinstance(part, keras.layers.Layer)}
    assert parts - {"logits"} == names - {"logits"}


@pytest.mark.parametrize("run", [lambda model: model, compiled], ids=["eager", "compiled"])
def test_ids_and_lengths_are_checked(run):
    model = loaded(GPT2)
    with pytest.raises(ValueError, match=r"ids must lie in 0 \.\. 22; got 23"):
        run(model)(None, tf.constant(IDS + 22 - IDS.max() + 1))
    with pytest.raises(ValueError, match="the table of positions serves 64 tokens; got 65"):
        run(model)(None, tf.zeros((1, 65), tf.int64))
    with pytest.raises(ValueError, match=r"takes no source; got one"):
        run(model)(tf.constant(IDS), tf.constant(IDS))
    with pytest.raises(ValueError, match=r"segment must lie in 0 \.\. 1; got 0 \.\. 2"):
        loaded(BERT).encode(tf.constant(IDS), segment_bs=tf.constant(IDS % 3))


@pytest.mark.parametrize("start", ["first_token", "row"])
@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_searches_of_prompts_of_different_lengths_are_the_reference_s(start, is_compiled):
    """Prompts are padded to the lengths of graphs, which no position may count."""
    config = GPT2.replace(position_start=start, position_offset=2, embedding_norm=True)
    searcher, tree = Searcher(loaded(config), compiled=is_compiled), parameters.nest(random_parameters(config))
    strategy = {"start_id": None, "end_id": 1, "max_new_tokens": 5, "beam_size": 3, "n_best": 2, "repetition_penalty": 1.2}
    for name in ("greedy_search", "beam_search"):
        found = getattr(searcher, name)(None, strategy, prefix=IDS, prefix_mask_bp=LEFT)
        expected = getattr(decoding, name)(tree, config, None, strategy, prefix=IDS, prefix_mask_bp=LEFT)
        for key, array in expected.items():
            np.testing.assert_allclose(found[key], array, rtol=0, atol=1e-10, err_msg=f"{name} {key}")


def test_an_answer_longer_than_the_positions_is_refused():
    strategy = {"start_id": None, "end_id": 1, "max_new_tokens": 60}
    with pytest.raises(ValueError, match="the table of positions serves 64 tokens; got 65"):
        Searcher(loaded(GPT2), compiled=False).greedy_search(None, strategy, prefix=IDS)


@pytest.mark.parametrize("config", [CLASSES, GPT2.replace(attention_dropout_rate=0.0)], ids=["classes", "gpt2"])
@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_a_step_of_training_is_the_reference_s(config, is_compiled):
    still = config.replace(dropout_rate=0.0, attention_dropout_rate=0.0, classifier_dropout_rate=0.0)
    recipe = PAPER.replace(warmup=3, microbatches=2, clip_norm=0.5)
    batch = (IDS, np.array([3, 0, 1, 2])) if config.classes else (None, IDS)
    kinds = (reference.Trainer, lambda *given: Trainer(*given, compiled=is_compiled))
    runs = [kind(still, recipe, random_parameters(still)) for kind in kinds]
    for _ in range(2):
        losses = [float(run.train_step(*batch)) for run in runs]
        np.testing.assert_allclose(*losses, rtol=1e-10)
    np.testing.assert_allclose(*(run.loss(*batch) for run in runs), rtol=1e-10)
    states = [run.state() for run in runs]
    # no weight depends on a key's bias: its gradient is what rounding leaves of 0, and Adam makes a step of that
    for name in (name for name in states[0] if not name.endswith("key.bias")):
        np.testing.assert_allclose(states[1][name], states[0][name], rtol=0, atol=1e-9, err_msg=name)


def test_training_of_classes_drops_and_checks_its_labels():
    run = Trainer(CLASSES, PAPER.replace(warmup=3), random_parameters(CLASSES), compiled=False)
    label_b = np.array([3, 0, 1, 2])
    drawn = [float(run.model.classification_loss(IDS, label_b, training=True)) for _ in range(2)]
    assert drawn[0] != drawn[1]
    with pytest.raises(ValueError, match=r"label ids must lie in 0 \.\. 3; got 4"):
        run.train_step(IDS, label_b + 1)
