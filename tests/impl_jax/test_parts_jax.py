"""Changes that users make to models of the JAX port: replaced parts, adapters, bridges to Linen."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from test_use_jax import CLOSE, MODELS, loaded, loss, right
from user_models import CONFIG, PAIR, SEARCH, SOURCE, TARGET, differs, reference, same, values

from impl_jax import cache, weights
from impl_jax.attention import MultiHeadAttention
from impl_jax.decoding import Searcher
from impl_jax.embedding import Embedding
from impl_jax.layers import DecoderLayer, EncoderLayer
from impl_jax.programs import static_cache
from impl_jax.programs.compiled import compiled
from impl_jax.transformer import Transformer
from reference_numpy import parameters


def searched(model: Any, searcher: Any = None) -> None:
    """Asserts that every token of a search is the likeliest according to the model's call."""
    found = np.asarray(MODELS.tokens(model, searcher or Searcher(model)))
    logits = np.asarray(model(SOURCE, np.concatenate([np.full((4, 1), 1), found[:, :-1]], axis=1)))
    ends = found == SEARCH["end_id"]
    best = np.take_along_axis(logits, found[..., None], axis=-1)[..., 0]
    after = np.cumsum(ends, axis=1) - ends > 0
    same(np.where(after, 0, logits.max(-1) - best), np.zeros(found.shape), CLOSE)


def adapted(rank: int = 2) -> Any:
    """Returns a model with a nonzero adapter next to a projection."""
    model = loaded()
    feed_forward = model.decoder.layers[0].feed_forward
    adapter = nnx.LoRA(8, rank, 12, base_module=feed_forward.hidden, rngs=nnx.Rngs(1))
    adapter.lora_b.set_value(jax.random.normal(jax.random.key(2), (rank, 12)))
    feed_forward.hidden = adapter
    return model


class Neighbours(nnx.Module):
    """A layer that adds the previous token to each token."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x_btd: Any, mask_bhts: Any) -> Any:
        return self.layer(x_btd + jnp.roll(x_btd, 1, axis=1).at[:, 0].set(0), mask_bhts)


class Scaled(nnx.Module):
    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, *args: Any) -> Any:
        return 3 * self.module(*args)


@pytest.mark.conformance
def test_tied_logits_follow_a_replaced_table() -> None:
    model = loaded()
    model.source_embedding = Embedding(24, 8, True, rngs=nnx.Rngs(5))
    right(model)
    gradients = nnx.jit(nnx.grad(loss))(model)
    nnx.update(model, jax.tree.map(lambda x, g: x - g, nnx.state(model, nnx.Param), gradients))
    right(model)


def test_a_layer_that_looks_at_neighbours_is_given_padding() -> None:
    model = loaded()
    model.encoder.layers[0] = Neighbours(model.encoder.layers[0])
    same(compiled(model, least=0)(*PAIR), nnx.jit(model)(*PAIR), 1e-5)


def test_parts_that_are_exchanged_after_compilation_are_used() -> None:
    model = loaded()
    call = compiled(model)
    first, hidden = call(*PAIR), model.decoder.layers[0].feed_forward.hidden
    hidden.kernel = nnx.Param(2 * hidden.kernel[...])
    second = call(*PAIR)
    differs(first, second)
    right(model, call)
    model.encoder.layers[0] = EncoderLayer(CONFIG, rngs=nnx.Rngs(9))
    differs(second, call(*PAIR))
    same(call(*PAIR), model(*PAIR), 1e-5)


def stock_norm(kind: Any, layer: str) -> Any:
    """Returns a Flax norm with the parameters of the model's."""
    norm = kind(epsilon=CONFIG.epsilon)
    for variable, name in (("scale", "scale"), ("bias", "offset")):
        array = values(dtype="float32")[f"{layer}.feed_forward_norm.{name}"]
        getattr(norm, variable).set_value(jnp.asarray(array))
    return norm


@pytest.mark.conformance
def test_own_and_stock_parts_are_computed_and_searched_with() -> None:
    model, own = loaded(), {"rngs": nnx.Rngs(0)}
    norm = stock_norm(partial(nnx.LayerNorm, 8, **own), "decoder.layers.0")
    model.decoder.layers[0].feed_forward_norm = norm
    linear = lambda **given: nnx.bridge.ToNNX(linen.LayerNorm(**given), **own).lazy_init(jnp.ones((1, 1, 8)))  # noqa: E731
    model.encoder.layers[0].feed_forward_norm = stock_norm(linear, "encoder.layers.0")
    same(model(*PAIR), reference(), CLOSE)
    layer = model.decoder.layers[0]
    layer.feed_forward = Scaled(layer.feed_forward)
    searched(model)


class Queries(MultiHeadAttention):
    def queries(self, query_btd: Any, rotation: Any = None) -> Any:
        return 2 * super().queries(query_btd, rotation)


class Attend(MultiHeadAttention):
    def attend(self, *args: Any, **kwargs: Any) -> Any:
        return 2 * super().attend(*args, **kwargs)


class Layer(DecoderLayer):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return 2 * super().__call__(*args, **kwargs)


def test_steps_call_what_they_can_and_a_search_refuses_the_rest() -> None:
    model, attention = loaded(), Queries(CONFIG, rngs=nnx.Rngs(0))
    nnx.update(attention, nnx.state(model.decoder.layers[0].self_attention))
    model.decoder.layers[0].self_attention = attention
    searched(model)
    model.decoder.layers[0].cross_attention = Attend(CONFIG, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="MultiHeadAttention"):
        Searcher(model)
    model.decoder.layers[0] = Layer(CONFIG, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"decoder\.layers\.0"):
        Searcher(model)


@pytest.mark.conformance
def test_a_layer_at_two_places_has_one_set_of_parameters() -> None:
    config = CONFIG.replace(encoder_layers=2)
    model, arrays = loaded(config), values(config)
    model.encoder.layers[1] = model.encoder.layers[0]
    model.eval()
    shared = {name.replace("layers.0", "layers.1"): x for name, x in arrays.items() if name.startswith("encoder.layers.0")}
    same(model(*PAIR), reference(config, arrays | shared), CLOSE)
    assert len(jax.tree.leaves(nnx.state(model, nnx.Param))) == len(parameters.shapes(CONFIG))


@pytest.mark.conformance
def test_an_adapter_is_called_everywhere_trained_and_merged() -> None:
    model = adapted()
    feed_forward = model.decoder.layers[0].feed_forward
    differs(model(*PAIR), reference())
    same(compiled(model, least=0)(*PAIR), model(*PAIR), 1e-5)
    searched(model)
    with pytest.raises(ValueError, match=r"decoder\.layers\.0"):
        weights.export(model, CONFIG)
    gradients = nnx.jit(nnx.grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam)))(model)
    assert len(jax.tree.leaves(gradients)) == 2
    nnx.update(model, jax.tree.map(lambda x, g: x - g, nnx.state(model, nnx.LoRAParam), gradients))
    adapter, expected = feed_forward.hidden, model(*PAIR)
    base = adapter.base_module
    same(base.kernel[...], values(dtype="float32")["decoder.layers.0.feed_forward.hidden.kernel"])
    feed_forward.hidden = base
    base.kernel.set_value(base.kernel[...] + adapter.lora_a[...] @ adapter.lora_b[...])
    same(model(*PAIR), expected, CLOSE)
    right(model)


@pytest.mark.conformance
def test_adapters_in_place_of_a_projection_and_around_the_logits() -> None:
    model, untied = loaded(), loaded(CONFIG.replace(tie_logits=False))
    linear = nnx.LoRALinear(8, 12, lora_rank=2, rngs=nnx.Rngs(4))
    linear.lora.lora_b.set_value(jnp.ones((2, 12)))
    model.decoder.layers[0].feed_forward.hidden = linear
    untied.logits = nnx.LoRA(8, 2, 24, base_module=untied.logits, rngs=nnx.Rngs(1))
    untied.logits.lora_b.set_value(jnp.ones((2, 24)) * jnp.arange(24))
    for each in (model, untied):
        searched(each)
    with pytest.raises(ValueError, match="decoder"):
        weights.export(model, CONFIG)


@pytest.mark.conformance
def test_a_step_in_a_scan_gives_the_rows_of_the_call() -> None:
    model = loaded()

    def step(held: Any, token_b: Any) -> Any:
        logits_b1v, held = static_cache.decode_step(model, token_b[:, None], held)
        return held, logits_b1v[:, 0]

    start = static_cache.start_cache(model, model.encode(SOURCE), jnp.asarray(SOURCE != 0), length=8)
    _, found = jax.jit(lambda start: jax.lax.scan(step, start, jnp.asarray(TARGET.T)))(start)
    same(np.asarray(found).swapaxes(0, 1)[TARGET != 0], reference()[TARGET != 0], CLOSE)


@pytest.mark.conformance
@pytest.mark.parametrize("room", [{}, {"length": 8}], ids=["grows", "has-room"])
def test_rows_of_a_cache_change_places_and_take_their_past_with_them(room: dict[str, int]) -> None:
    pages = static_cache if room else cache
    model, row_b = loaded(), np.array([2, 0, 3, 1])
    held = pages.start_cache(model, model.encode(SOURCE), jnp.asarray(SOURCE != 0), **room)
    first, held = pages.decode_step(model, TARGET[:, :2], held)
    rest, _ = pages.decode_step(model, TARGET[row_b, 2:], pages.reorder(held, row_b))
    found = np.concatenate([first, np.asarray(rest)[np.argsort(row_b)]], axis=1)
    same(found[TARGET != 0], reference()[TARGET != 0], CLOSE)


@pytest.mark.conformance
def test_a_module_of_linen_has_the_numbers() -> None:
    module, other = nnx.bridge.ToLinen(Transformer, args=(CONFIG,)), loaded()
    variables = module.init(jax.random.key(0), *PAIR)
    state = nnx.state(other, nnx.Param)
    nnx.replace_by_pure_dict(state, jax.tree.map(lambda x: x, variables["params"]))
    nnx.update(other, state)
    right(other, partial(module.apply, variables))
