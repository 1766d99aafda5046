"""Parts that users put into a model, adapters, and searches."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from impl_jax import cache, weights
from impl_jax.attention import MultiHeadAttention
from impl_jax.decoding import Searcher
from impl_jax.embedding import Embedding
from impl_jax.layers import DecoderLayer, EncoderLayer
from impl_jax.programs.compiled import compiled
from impl_jax.transformer import Transformer
from reference_numpy import decoding, parameters

from .jax_data import CONFIG, GPT2, PAIR, SEARCH, SOURCE, TARGET
from .jax_models import differs, equals_itself, loaded, loss, right, same, topic, values

PARTS, ADAPTERS, SEARCHES = map(topic, ("Parts of one's own", "Adapters", "Searches"))


class Neighbours(nnx.Module):
    """A layer of x and the mask that adds to every token the one before it."""

    def __init__(self, layer: nnx.Module) -> None:
        self.layer = layer

    def __call__(self, x_btd: Any, mask_bhts: Any) -> Any:
        before_btd = jnp.roll(x_btd, 1, axis=1).at[:, 0].set(0)
        return self.layer(x_btd + before_btd, mask_bhts)  # type: ignore[operator]


class Scaled(nnx.Module):
    """What gives as much of another module."""

    def __init__(self, module: nnx.Module, scale: float) -> None:
        self.module, self.scale = module, scale

    def __call__(self, *args: Any) -> Any:
        return self.module(*args) * self.scale  # type: ignore[operator]


def adapted(rank: int = 2, at: str = "hidden") -> Transformer:
    """A model with an adapter beside a projection, which adds something."""
    model = loaded()
    feed_forward = model.decoder.layers[0].feed_forward
    before, shape = getattr(feed_forward, at), getattr(feed_forward, at).kernel.shape
    adapter = nnx.LoRA(shape[0], rank, shape[1], base_module=before, rngs=nnx.Rngs(1))
    adapter.lora_b.set_value(jax.random.normal(jax.random.key(2), (rank, shape[1])))
    setattr(feed_forward, at, adapter)
    return model


def greedy_is_the_call_s(model: Transformer, searcher: Searcher) -> None:
    """Every token that a search chose is the likeliest by the model's call."""
    found = np.asarray(searcher.greedy_search(SOURCE, SEARCH)["token_bn"])
    logits = np.asarray(model(SOURCE, np.concatenate([np.full((4, 1), 1), found[:, :-1]], axis=1)))
    ended = np.cumsum(found == SEARCH["end_id"], axis=1) - (found == SEARCH["end_id"]) > 0
    best = np.take_along_axis(logits, found[..., None], axis=-1)[..., 0]
    same(np.where(ended, 0, logits.max(-1) - best), np.zeros(found.shape))


@PARTS.works("`model.source_embedding = Embedding(...)`: tied logits follow, trained and exported")
def _(model) -> None:
    model.source_embedding = Embedding(24, 8, True, rngs=nnx.Rngs(5))
    equals_itself(model)
    nnx.update(model, jax.tree.map(lambda x, g: x - g, nnx.state(model, nnx.Param), nnx.jit(nnx.grad(loss))(model)))
    equals_itself(model)


@PARTS.works("an own layer `__call__(x, mask)` that looks at neighbours; `compiled(model)`, with padding", sample=True)
def _(model) -> None:
    model.encoder.layers[0] = Neighbours(model.encoder.layers[0])
    same(compiled(model, least=0)(*PAIR), nnx.jit(model)(*PAIR))


@PARTS.works("a layer, or a `nnx.Param`, that is exchanged after `compiled(model)`", sample=True)
def _(model) -> None:
    call = compiled(model)
    first = call(*PAIR)
    hidden = model.decoder.layers[0].feed_forward.hidden
    hidden.kernel = nnx.Param(2 * hidden.kernel[...])
    second = call(*PAIR)
    differs(first, second)
    equals_itself(model)
    model.encoder.layers[0] = EncoderLayer(CONFIG, rngs=nnx.Rngs(9))
    differs(second, call(*PAIR))
    same(call(*PAIR), model(*PAIR))


@PARTS.works("a feed-forward network of one's own in decoder layers, and a search")
def _(model) -> None:
    layer = model.decoder.layers[0]
    layer.feed_forward = Scaled(layer.feed_forward, 3.0)
    greedy_is_the_call_s(model, Searcher(model))


@PARTS.works("`nnx.LayerNorm` in place of the port's, and a search")
def _(model) -> None:
    layer, own = model.decoder.layers[0], values()
    layer.feed_forward_norm = norm = nnx.LayerNorm(8, epsilon=CONFIG.epsilon, rngs=nnx.Rngs(0))
    for variable, name in ((norm.scale, "scale"), (norm.bias, "offset")):
        variable.set_value(jnp.asarray(own[f"decoder.layers.0.feed_forward_norm.{name}"]))
    right(model(*PAIR))
    greedy_is_the_call_s(model, Searcher(model))


@PARTS.refused("`Searcher`, a decoder layer with a `__call__` of its own", "decoding in steps needs decoder.layers.0 to be")
def _() -> None:
    class Mine(DecoderLayer):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super().__call__(*args, **kwargs)

    model = loaded()
    model.decoder.layers[0] = Mine(CONFIG, rngs=nnx.Rngs(0))
    Searcher(model)


@PARTS.refused("`Searcher`, attention with an `attend` of its own", "to be a MultiHeadAttention with its own", sample=True)
def _() -> None:
    class Mine(MultiHeadAttention):
        def attend(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super().attend(*args, **kwargs)

    model = loaded()
    model.decoder.layers[0].cross_attention = Mine(CONFIG, rngs=nnx.Rngs(0))
    Searcher(model)


@PARTS.works("attention with `queries` of its own, such as rotated ones: steps call them")
def _() -> None:
    class Mine(MultiHeadAttention):
        def queries(self, query_btd: Any) -> Any:
            return 2 * super().queries(query_btd)

    model, attention = loaded(), Mine(CONFIG, rngs=nnx.Rngs(0))
    nnx.update(attention, nnx.state(model.decoder.layers[0].self_attention))
    model.decoder.layers[0].self_attention = attention
    greedy_is_the_call_s(model, Searcher(model))


@PARTS.works("a subclass of `Transformer` with methods of its own, and a search")
def _() -> None:
    class Mine(Transformer):
        def perplexity(self, *ids: Any) -> Any:
            return jnp.exp(self.training_loss(*ids))

    model = loaded(kind=Mine)
    same(nnx.jit(lambda model: model.perplexity(*PAIR))(model), np.exp(model.training_loss(*PAIR)))
    greedy_is_the_call_s(model, Searcher(model))


@PARTS.works("one layer at two places, as ALBERT has it: the gradients of both uses add up")
def _() -> None:
    config = CONFIG.replace(encoder_layers=2)
    model = loaded(config)
    model.encoder.layers[1] = model.encoder.layers[0]
    model.eval()
    arrays = values(config)
    shared = {name.replace("layers.0", "layers.1"): array for name, array in arrays.items() if name.startswith("encoder.layers.0")}
    right(model(*PAIR), config, arrays=arrays | shared)
    assert len(jax.tree.leaves(nnx.state(model, nnx.Param))) == len(parameters.shapes(CONFIG))


@PARTS.works("`self.sow` in a layer of one's own, read by `nnx.pop`")
def _() -> None:
    class Mine(EncoderLayer):
        def __call__(self, x_btd: Any, *args: Any, **kwargs: Any) -> Any:
            self.sow(nnx.Intermediate, "given", x_btd)
            return super().__call__(x_btd, *args, **kwargs)

    model, layer = loaded(), Mine(CONFIG, rngs=nnx.Rngs(0))
    nnx.update(layer, nnx.state(model.encoder.layers[0]))
    model.encoder.layers[0] = layer
    right(model(*PAIR))
    assert jax.tree.leaves(nnx.pop(model, nnx.Intermediate))[0].shape == (4, 8, 8)


@ADAPTERS.works("`nnx.LoRA` around a projection: call, `compiled`, `nnx.jit`")
def _() -> None:
    model = adapted()
    differs(model(*PAIR), loaded()(*PAIR))
    same(compiled(model, least=0)(*PAIR), model(*PAIR))


@ADAPTERS.works("`nnx.LoRA` around a projection, and `Searcher`", sample=True)
def _() -> None:
    model = adapted()
    greedy_is_the_call_s(model, Searcher(model))


@ADAPTERS.works("`nnx.LoRALinear` in place of a projection, and `Searcher`")
def _(model) -> None:
    feed_forward = model.decoder.layers[0].feed_forward
    feed_forward.hidden = nnx.LoRALinear(8, 12, lora_rank=2, rngs=nnx.Rngs(4))
    feed_forward.hidden.lora.lora_b.set_value(jnp.ones((2, 12)))
    greedy_is_the_call_s(model, Searcher(model))


@ADAPTERS.works("an adapter around the logits, where they are not tied, and `Searcher`")
def _() -> None:
    model = loaded(CONFIG.replace(tie_logits=False))
    model.logits = nnx.LoRA(8, 2, 24, base_module=model.logits, rngs=nnx.Rngs(1))
    model.logits.lora_b.set_value(jnp.ones((2, 24)) * jnp.arange(24))
    greedy_is_the_call_s(model, Searcher(model))


@ADAPTERS.works("training of `nnx.LoRAParam` alone")
def _() -> None:
    model = adapted()
    gradients = nnx.jit(nnx.grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam)))(model)
    assert len(jax.tree.leaves(gradients)) == 2
    nnx.update(model, jax.tree.map(lambda x, g: x - g, nnx.state(model, nnx.LoRAParam), gradients))
    hidden = model.decoder.layers[0].feed_forward.hidden
    same(hidden.base_module.kernel[...], values()["decoder.layers.0.feed_forward.hidden.kernel"], 0)


ADAPTERS.refused(
    "`weights.export` of a model with an adapter", "the module has no variable decoder.layers.0", lambda: weights.export(adapted(), CONFIG)
)


@ADAPTERS.refused("`weights.export`, `nnx.LoRALinear` for a projection", "no array would hold the module's decoder", sample=True)
def _(model) -> None:
    model.decoder.layers[0].feed_forward.hidden = nnx.LoRALinear(8, 12, lora_rank=2, rngs=nnx.Rngs(4))
    weights.export(model, CONFIG)


@ADAPTERS.works("an adapter that is added to its kernel, and `weights.export`")
def _() -> None:
    model = adapted()
    expected, feed_forward = model(*PAIR), model.decoder.layers[0].feed_forward
    adapter = feed_forward.hidden
    feed_forward.hidden = adapter.base_module
    feed_forward.hidden.kernel.set_value(feed_forward.hidden.kernel[...] + adapter.lora_a[...] @ adapter.lora_b[...])
    same(model(*PAIR), expected)
    equals_itself(model)


@SEARCHES.works("`Searcher(model).greedy_search`, `beam_search` and `sample`: the reference's tokens")
def _() -> None:
    searcher, tree = Searcher(loaded()), parameters.nest(values(dtype=np.float64))
    for name, options, given in (("greedy_search", SEARCH, ()), ("beam_search", SEARCH | {"beam_size": 3}, ()),
                                 ("sample", SEARCH, (np.full((4, 5), 0.4),))):  # fmt: skip
        expected = getattr(decoding, name)(tree, CONFIG, SOURCE, options, *given)
        for key, array in getattr(searcher, name)(SOURCE, options, *given).items():
            same(array, expected[key], 1e-3)


@SEARCHES.works("a prompt for a decoder-only model: `greedy_search(None, ..., prefix=...)`")
def _() -> None:
    options = SEARCH | {"start_id": None}
    found = Searcher(loaded(GPT2)).greedy_search(None, options, prefix=TARGET[:, :3])
    expected = decoding.greedy_search(parameters.nest(values(GPT2, np.float64)), GPT2, None, options, prefix=TARGET[:, :3])
    same(found["token_bn"], expected["token_bn"], 0)


@SEARCHES.works("a searcher keeps the weights of its moment; a new one has the trained ones")
def _(model) -> None:
    searcher, before = Searcher(model), loaded()
    nnx.update(model, jax.tree.map(lambda x: 1.5 * x, nnx.state(model, nnx.Param)))
    greedy_is_the_call_s(before, searcher)
    greedy_is_the_call_s(model, Searcher(model))


@SEARCHES.works("`decode_step` with a cache in `jax.jit` and `jax.lax.scan`: the rows of the call")
def _(model) -> None:
    memory_bsd, mask_bs = model.encode(SOURCE), jnp.asarray(SOURCE != 0)

    def step(held: Any, token_b: Any) -> Any:
        logits_b1v, held = cache.decode_step(model, token_b[:, None], held)
        return held, logits_b1v[:, 0]

    start = cache.start_cache(model, memory_bsd, mask_bs, length=8)
    _, logits_tbv = jax.jit(lambda start: jax.lax.scan(step, start, jnp.asarray(TARGET.T)))(start)
    real = TARGET != 0
    same(np.asarray(logits_tbv).swapaxes(0, 1)[real], model(*PAIR)[real])
