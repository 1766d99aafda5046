"""The loss of routers (BALANCE) in the ports' training equals the reference's, and so do its gradients."""

from typing import Any

import numpy as np
import pytest
from backends import FOUR, PORTS, Backend
from strategies import tree

from reference_numpy import parameters, preset, transformer
from reference_numpy.recipe import PAPER
from reference_numpy.sharding import Mesh
from reference_numpy.training import Trainer

WEIGHTS = {"router_aux_weight": 0.7, "router_z_weight": 0.03}
RECIPE = PAPER.replace(beta_1=0.0, **WEIGHTS)  # Adam's first moment is the gradient
CONFIG = preset(
    "mixtral_8x7b", source_vocabulary=9, target_vocabulary=9, model_width=8, heads=4, key_value_heads=2, key_size=2, value_size=3,
    decoder_layers=3, experts=6, experts_per_token=2, expert_width=3, expert_pattern=(True, False, True), padding_id=0,
)  # fmt: skip
SIGMOID = CONFIG.replace(router_scores="sigmoid", router_bias=True, selection_bias=True, router_scale=2.5)
TARGET = np.array([[0, 0, 3, 4, 2, 5], [3, 4, 5, 1, 2, 7], [0, 6, 2, 8, 0, 0], [5, 7, 1, 2, 0, 0]])  # padded on both sides
SETTINGS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "whole": (CONFIG, {}, {}),
    "microbatches": (SIGMOID, {"microbatches": 2}, {}),
    "recompute": (CONFIG, {}, {"recompute": True}),
}


def kind_of(name: str) -> Any:
    return Trainer if name == "numpy" else Backend(name).part("training").Trainer


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", [*PORTS, pytest.param("compiled torch", marks=pytest.mark.product)])  # torch starts a compiler
def test_a_training_step_equals_the_reference(name: str, setting: str) -> None:
    config, changes, options = SETTINGS[setting]
    held, recipe = parameters.flatten(tree(config, 3, "transformer")), RECIPE.replace(**changes)
    kind, wanted = kind_of(name.split()[-1]), Trainer(config, recipe, held)
    if setting == "recompute" and name in ("tf", "compiled torch"):
        with pytest.raises(ValueError, match="recompute"):
            kind(config, recipe, held, **options)
        return
    run = kind(config, recipe, held, compiled=name != "torch", **options)
    np.testing.assert_allclose(float(run.train_step(None, TARGET)), wanted.train_step(None, TARGET), rtol=1e-12)
    found = run.state()
    for path, array in wanted.state().items():
        if path.startswith("first_moment."):
            np.testing.assert_allclose(found[path], array, rtol=0, atol=1e-12 * max(np.abs(array).max(), 1e-3), err_msg=path)
            assert ".router." not in path or path.endswith("selection_bias") or array.any(), path
    # an update moves numbers by their gradient's sign, which rounding decides where the gradient is 0
    assert run.loss(None, TARGET)[0] == pytest.approx(wanted.loss(None, TARGET)[0], rel=1e-6)  # without the loss of routers


@pytest.mark.parametrize("name", ["tf", "jax", pytest.param("torch", marks=pytest.mark.product)])
def test_a_compiled_loss_skips_no_padding(name: str) -> None:
    port = Backend(name)
    with port.wide():
        model = port.loaded(CONFIG, parameters.flatten(tree(CONFIG, 3, "transformer")))
        compiled, rows = port.port.compiled(model.training_loss), np.concatenate([TARGET, np.zeros((4, 40), int)], 1)
        values = [float(compiled(None, port.weights.from_numpy(given), **WEIGHTS)) for given in (TARGET, rows)]
    wanted = transformer.training_loss(tree(CONFIG, 3, "transformer"), CONFIG, None, TARGET, **WEIGHTS)
    np.testing.assert_allclose(values, float(wanted), rtol=1e-12)


@pytest.mark.parametrize("name", FOUR)
def test_weights_are_refused_without_routers_and_on_a_mesh(name: str) -> None:
    dense = CONFIG.replace(experts=0)
    with pytest.raises(ValueError, match="experts"):
        kind_of(name)(dense, RECIPE, parameters.flatten(tree(dense, 3, "transformer")))
    if name != "numpy":
        with pytest.raises(ValueError, match="mesh"):
            kind_of(name)(CONFIG, RECIPE, parameters.flatten(tree(CONFIG, 3, "transformer")), mesh=Mesh(data=1))
