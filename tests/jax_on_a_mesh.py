"""Run on four devices: on a mesh of explicit axes, loss and gradients equal those of one device."""

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from impl_jax import weights
from impl_jax.decoding import Searcher
from impl_jax.transformer import Transformer
from reference_numpy import parameters, preset

CONFIG = preset("tiny", source_vocabulary=24, target_vocabulary=24, output_bias=True, dropout_rate=0.0)
OPTIONS = {"start_id": 1, "end_id": 2, "max_new_tokens": 3}
MESH = jax.make_mesh((4,), ("devices",))
RNG = np.random.default_rng(0)
ARRAYS = {name: 0.3 * RNG.standard_normal(shape) for name, shape in parameters.shapes(CONFIG).items()}
SOURCE, TARGET = RNG.integers(1, 24, (4, 7)), RNG.integers(1, 24, (4, 5))
SOURCE[0, 5:] = TARGET[1, :2] = CONFIG.padding_id or 0


def loaded() -> Transformer:
    model = Transformer(CONFIG, param_dtype=np.float64, rngs=nnx.Rngs(0))
    weights.load(model, ARRAYS, CONFIG)
    return model


def shard(tree, spec, mesh=MESH):
    return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, spec(x))), tree)


def by_last_axis(x) -> PartitionSpec:
    """As a kernel is laid out that is split by its outputs."""
    return PartitionSpec(*[None] * (x.ndim - 1), "devices") if x.ndim and x.shape[-1] % 4 == 0 else PartitionSpec()


@nnx.jit
def found(model: Transformer, source, target):
    loss, gradient = nnx.value_and_grad(lambda model: model.training_loss(source, target, smoothing=0.1))(model)
    return {"logits": model(source, target), "loss": loss, "gradient": gradient}


def check(one, other) -> None:
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=0, atol=1e-12)


def main() -> None:
    assert MESH.axis_types == (AxisType.Explicit,)
    expected = found(loaded(), SOURCE, TARGET)
    ids = shard((SOURCE, TARGET), lambda x: PartitionSpec("devices"))
    model = loaded()
    nnx.update(model, shard(nnx.state(model), lambda x: PartitionSpec()))
    check(found(model, *ids), expected)
    assert found(model, *ids)["logits"].sharding.spec[0] == "devices"
    check(model(*ids), expected["logits"])
    with jax.set_mesh(MESH):
        check(found(model, *ids), expected)

    nnx.update(model, shard(nnx.state(model), by_last_axis))
    kernel = model.encoder.layers[0].feed_forward.hidden.kernel
    before = kernel.get_value().sharding
    weights.load(model, {name: array + 1 for name, array in ARRAYS.items()}, CONFIG)
    assert kernel.get_value().sharding == before
    for name, array in weights.export(model, CONFIG).items():
        np.testing.assert_array_equal(array, ARRAYS[name] + 1)

    try:
        Searcher(model)
    except ValueError as error:
        assert "decoding needs Auto axes" in str(error), error
    else:
        raise AssertionError("a search on explicit axes was not refused")
    auto, model = jax.make_mesh((4,), ("devices",), axis_types=(AxisType.Auto,)), loaded()
    expected = Searcher(model).beam_search(SOURCE, OPTIONS | {"beam_size": 2})
    nnx.update(model, shard(nnx.state(model), lambda x: PartitionSpec(), auto))
    check(Searcher(model).beam_search(SOURCE, OPTIONS | {"beam_size": 2}), expected)


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
