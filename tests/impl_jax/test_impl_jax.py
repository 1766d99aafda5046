"""Specifics of the JAX port: transformations, compilation, weights, dropout and JAX's default of no 64-bit types."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from kinds import conformance

from impl_jax import port, weights
from impl_jax.attention import attention_weights, repeat_kv, scaled_dot_product_attention
from impl_jax.decoding import Searcher
from impl_jax.dropout import Dropout
from impl_jax.embedding import SegmentEmbedding
from impl_jax.feed_forward import FeedForward
from impl_jax.kernels.attention import chunk_lengths, in_chunks
from impl_jax.kernels.projection import SMALL
from impl_jax.loss import cross_entropy
from impl_jax.normalization import LayerNorm
from impl_jax.positional_encoding import PositionEmbedding, positional_encoding
from impl_jax.programs.compiled import compiled
from impl_jax.programs.fused import FusedLogits, fused
from impl_jax.softmax import softmax
from impl_jax.transformer import Transformer
from impl_jax.values import Heads
from reference_numpy import TransformerConfig, decoding, parameters, preset
from reference_numpy import positional_encoding as reference_positions
from reference_numpy import transformer as reference
from reference_numpy.scores import Scores


def small(name: str = "tiny", **changes: Any) -> TransformerConfig:
    sizes = {"source_vocabulary": 13, "target_vocabulary": 13, "model_width": 6, "heads": 2, "key_value_heads": 1, "key_size": 3,
             "value_size": 4, "feed_forward_width": 7}  # fmt: skip
    own = {"tiny": {"encoder_layers": 1, "decoder_layers": 1}, "bert_base": {"encoder_layers": 1, "max_positions": 20},
           "gpt2_small": {"decoder_layers": 1, "max_positions": 20}}  # fmt: skip
    return preset(name, **(sizes | own[name] | changes))


def loaded(config: TransformerConfig) -> tuple[Transformer, dict[str, np.ndarray]]:
    model = port.blank(Transformer, config, jnp.float32)
    arrays = parameters.initialise(config, 1, np.float32)
    weights.load(model, arrays, config)
    model.eval()
    return model, arrays


SOURCE, TARGET = np.array([[0, 3, 4, 5, 6], [1, 2, 0, 0, 0]]), np.array([[7, 8, 9], [0, 0, 0]])


def test_a_compiled_model_equals_the_reference_and_is_traced_once():
    config, traces = small(), []

    class Traced(Transformer):
        def __call__(self, source: Any, target: Any) -> Any:
            traces.append(1)
            return super().__call__(source, target)

    model, arrays = Traced(config, rngs=nnx.Rngs(0)), parameters.initialise(config, 1, np.float32)
    weights.load(model, arrays, config)
    model.eval()
    call = compiled(model)
    y = call(SOURCE, TARGET)
    call(source=jnp.asarray(SOURCE), target=TARGET + 1)
    np.testing.assert_allclose(y, reference.transformer(parameters.nest(arrays), config, SOURCE, TARGET), atol=1e-5)
    assert len(traces) == 1


def test_a_compiled_model_reads_its_variables_at_every_call():
    layer = LayerNorm(4, 1e-6)
    call = compiled(layer)
    x = jnp.ones((1, 1, 4))
    before = call(x)
    layer.offset.set_value(jnp.full(4, 2.0))
    np.testing.assert_array_equal(call(x), before + 2)


def test_the_softmax_of_a_row_of_minus_infinity_passes_zero_gradient():
    with jax.debug_nans(True):
        assert not jax.grad(lambda x: (softmax(x) ** 2).sum())(jnp.full((1, 3), -jnp.inf)).any()


def test_dropout_is_given_a_rate_below_1_and_in_training_a_stream_to_draw_from():
    with pytest.raises(ValueError, match="rngs"):
        Dropout(0.5)(jnp.ones(2))
    with pytest.raises(ValueError, match=r"rate.*1; got 1"):
        Dropout(1.0)


def test_no_array_is_rounded_silently():
    with pytest.raises(ValueError, match="float64 needs jax_enable_x64"):
        weights.from_numpy(np.ones(2))
    with pytest.raises(ValueError, match="int64 needs jax_enable_x64"):
        weights.from_numpy(np.array([2**40]))
    assert weights.from_numpy(np.arange(3)).dtype == jnp.int32


@pytest.mark.parametrize("traced", [False, True])
def test_far_positions_are_right_without_x64(traced: bool):
    position = np.array([[0, 1, 9999, 123_457, 2**31 - 1]])
    encode = jax.jit(positional_encoding, static_argnums=(1, 2)) if traced else positional_encoding
    for dtype in (jnp.float32, jnp.bfloat16):
        got = encode(position, 7, dtype)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, reference_positions.positional_encoding(position, 7, dtype))
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [((4, 12, 512, 512), (128, 512)), ((1, 8, 2048, 2048), (256, 2048)), ((4, 12, 256, 256), ()), ((4, 12, 0, 5), ())],
)
def test_chunks_differ_as_little_as_they_can(sizes: tuple[int, ...], lengths: tuple[int, ...]) -> None:
    """170 queries would fit instead of 128, but leave a chunk of two."""
    assert chunk_lengths(*sizes) == lengths


@pytest.mark.parametrize("causal", [conformance(False), True])
@pytest.mark.parametrize("target", [conformance(12), 13])
def test_queries_in_chunks_give_what_they_give_together(target: int, causal: bool) -> None:
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, target, 4, 5)), rng.standard_normal((2, 11, 2, 5))
    bound = 2 * target * 4 * 5 * np.finfo(float).eps  # rounding of a sum of this many terms in another order
    bias, mask = rng.standard_normal((1, 4, target, 11)), rng.random((2, 1, 1, 11)) < 0.7

    def in_fours(heads: Heads, mask_bhts: Any, scores: Scores) -> jax.Array:
        heads = heads._replace(value_bsge=repeat_kv(heads.value_bsge, 4))
        return in_chunks(attention_weights, heads, mask_bhts, scores, lengths=(4, 4))

    def values(attention: Any) -> list[jax.Array]:
        def total(query: Any, key: Any, bias: Any) -> jax.Array:
            hidden = jnp.where(jnp.asarray(mask), bias, -jnp.inf)
            return jnp.square(attention(Heads(query, key, key), hidden, Scores(causal=causal))).sum()

        return jax.tree.leaves(jax.value_and_grad(total, argnums=(0, 1, 2))(*(jnp.asarray(x) for x in (query, key, bias))))

    with jax.enable_x64(True):
        chunked = values(in_fours)
        for one, other in zip(chunked, values(scaled_dot_product_attention), strict=True):
            assert one.dtype == np.float64
            np.testing.assert_allclose(one, other, rtol=0, atol=bound * np.abs(other).max())


def test_memory_grows_with_the_length_not_with_its_square() -> None:
    def bytes_of(length: int) -> int:
        x = jax.ShapeDtypeStruct((1, length, 8, 64), jnp.float32)
        compiled = jax.jit(lambda x: jax.grad(lambda x: scaled_dot_product_attention(Heads(x, x, x)).sum())(x)).lower(x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert bytes_of(8192) < 2.5 * bytes_of(4096)


@pytest.mark.conformance
@pytest.mark.parametrize("padding_id", [pytest.param(0, marks=pytest.mark.conformance), None])
def test_one_exported_program_of_a_loss_serves_every_batch_and_length(padding_id: int | None) -> None:
    model, _ = loaded(small(padding_id=padding_id))
    graph, state = nnx.split(model)
    batch, source, target = jax.export.symbolic_shape("b, s, t", constraints=["t >= 2"])
    ids = [jax.ShapeDtypeStruct((batch, length), jnp.int32) for length in (source, target)]
    run = jax.jit(lambda state, *ids: nnx.merge(graph, state).training_loss(*ids))
    loss = jax.export.export(run)(state, *ids)
    for rows, long, short in ((2, 5, 3), (1, 1, 2), (3, 2, 7)):
        given = [jnp.asarray(np.resize(ids, (rows, length)), jnp.int32) for ids, length in ((SOURCE, long), (TARGET, short))]
        np.testing.assert_allclose(loss.call(state, *given), model.training_loss(*given), rtol=0, atol=1e-5)


def test_the_loss_is_as_wide_as_the_parameters() -> None:
    def loss(**dtypes: Any) -> jax.ShapeDtypeStruct:
        return nnx.eval_shape(
            lambda: Transformer(small(), **dtypes, rngs=nnx.Rngs(0)).training_loss(jnp.asarray(SOURCE), jnp.asarray(TARGET))
        )

    assert loss(dtype=jnp.bfloat16).dtype == jnp.float32
    assert loss(param_dtype=jnp.bfloat16).dtype == jnp.bfloat16


def test_a_module_without_a_stream_to_draw_from_is_made_and_does_not_train() -> None:
    config = small(dropout_rate=0.0, attention_dropout_rate=0.0, hidden_dropout_rate=0.0)
    for rate in (0.0, 0.1):
        linen = nnx.bridge.ToLinen(Transformer, args=(config.replace(dropout_rate=rate),))
        if rate:
            with pytest.raises(ValueError, match=r"rngs.*None"):
                linen.init({"params": jax.random.key(0)}, SOURCE, TARGET)
        else:
            variables = linen.init({"params": jax.random.key(0)}, SOURCE, TARGET)
            assert linen.apply(variables, SOURCE, TARGET).shape == (2, 3, 13)
    model = Transformer(config.replace(dropout_rate=0.1), rngs=nnx.Rngs(params=0))
    model.eval()
    assert model(SOURCE, TARGET).shape == (2, 3, 13)


def test_drawn_masks_change_where_the_module_s_state_is_kept() -> None:
    """Dropout's docstring lists the transformations that keep it."""
    model = FeedForward(small(hidden_dropout_rate=0.5), rngs=nnx.Rngs(0))
    x = jnp.ones((1, 4, 6))
    run = jax.jit(lambda module, x: (module(x), nnx.state(module, nnx.RngCount)))
    first, counts = run(model, x)
    np.testing.assert_array_equal(run(model, x)[0], first)
    nnx.update(model, counts)
    assert np.any(run(model, x)[0] != first)
    with pytest.raises(Exception, match="Cannot mutate RngCount"):
        jax.jit(model)(x)


@pytest.mark.parametrize("tied", [True, False])
def test_a_search_with_matrices_that_are_not_small_gives_the_same(tied: bool) -> None:
    """They are stored transposed; the logits of a tied table are unchanged."""
    wide, options = SMALL // (6 * 4) + 1, {"start_id": 1, "end_id": 2, "max_new_tokens": 7}
    config = small(tie_logits=tied, share_embeddings=tied, feed_forward_width=wide, source_vocabulary=wide, target_vocabulary=wide)
    arrays = {name: np.float32(0.6) * np.random.default_rng(3).standard_normal(shape, np.float32)
              for name, shape in parameters.shapes(config).items()}  # fmt: skip
    model = port.blank(Transformer, config, jnp.float32)
    weights.load(model, arrays, config)
    copy = fused(model)
    assert copy.decoder.layers[0].feed_forward.hidden.transposed
    assert isinstance(copy.logits, FusedLogits) is not tied
    found = Searcher(model).greedy_search(SOURCE, options)
    plain, expected = (
        decoding.greedy_search(parameters.nest({name: value.astype(dtype) for name, value in arrays.items()}), config, SOURCE, options)
        for dtype in (np.float32, np.float64)
    )
    np.testing.assert_array_equal(found["token_bn"], expected["token_bn"])
    error, noise = (np.abs(one["log_p_bn"] - expected["log_p_bn"]).max() for one in (found, plain))
    assert error <= 4 * noise + np.spacing(np.float32(np.abs(expected["log_p_bn"]).max()))


def test_states_are_those_of_evaluation_in_any_mode() -> None:
    model, _ = loaded(small("bert_base", dropout_rate=0.5, attention_dropout_rate=0.5))
    expected = model.states(SOURCE)
    model.train()
    for found in (model.states(SOURCE), compiled(model.states)(SOURCE)):
        assert found.keys() == {"encoder"}
        for name, array in expected["encoder"].items():
            np.testing.assert_allclose(found["encoder"][name], array, rtol=0, atol=1e-6)
    assert np.any(model.encode(SOURCE) != expected["encoder"]["hidden_lbtd"][-1])


def test_prompts_of_many_lengths_need_few_programs() -> None:
    searcher = Searcher(loaded(small("gpt2_small", max_positions=24, feed_forward_width=9))[0])
    before = searcher.graphs
    for length in range(2, 17):
        prefix = np.ones((1, length), int)
        searcher.greedy_search(None, {"start_id": None, "end_id": 0, "max_new_tokens": 3 + length // 3}, prefix=prefix)
    assert searcher.graphs == before + 1


def test_indices_out_of_range_are_nan_in_a_program() -> None:
    (model, _), run = loaded(small()), jax.jit(lambda model, *ids: model(*ids))
    for place in (0, 1):
        ids = [SOURCE.copy(), TARGET.copy()]
        ids[place][1, 1] = -1
        found = np.asarray(run(model, *ids))
        assert np.isnan(found[1, 1:]).all()
        np.testing.assert_allclose(found[0], model(SOURCE, TARGET)[0], rtol=0, atol=1e-5)
    index = jnp.array([[0, -1, 2]])
    for table in (SegmentEmbedding(3, 8, rngs=nnx.Rngs(0)), PositionEmbedding(5, 8, 2, rngs=nnx.Rngs(0))):
        rows = np.asarray(jax.jit(lambda table, index: table(index))(table, index))
        assert np.isnan(rows[0, 1]).all() and np.isfinite(rows[0, ::2]).all()
    logits, label = jnp.zeros((1, 2, 3)), jnp.array([[1, -1]])
    assert np.isnan(jax.jit(cross_entropy)(logits, label))
    np.testing.assert_allclose(jax.jit(cross_entropy)(logits, label, label >= 0), np.log(3), rtol=1e-6)
