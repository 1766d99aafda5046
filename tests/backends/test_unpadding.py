"""The ports without the padding of a batch (PADDING): flat tokens give the reference's numbers, for every pattern of padding."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from backends import PORTS, Backend
from kinds import conformance
from test_training import CONFIG, FULL, RECIPE, STILL, UNTIED, batch, begin, bits, equals_the_reference

from reference_numpy import TransformerConfig, parameters, sites, transformer
from rosettaformer.judge.expectation.components import function_of

ROWS, SOURCE, TARGET = 5, 9, 8  # more positions than the flat lengths, so that some end with filler
SMOOTHING = 0.1
LEARNED = {"positions": "learned", "max_positions": 11, "scale_embedding": False}
CONFIGS = {
    "post-sinusoidal-tied": CONFIG.replace(**STILL),
    "pre-learned-from-the-row-untied": UNTIED.replace(**STILL, **LEARNED, position_start="row", attention_bias=True),
    "post-learned-from-the-first-token-normalised": CONFIG.replace(
        **STILL, **LEARNED, embedding_norm=True, segments=2, encoder_layers=2, decoder_layers=2
    ),
    "pre-sinusoidal-from-the-row": CONFIG.replace(**STILL, position_start="row", norm_placement="pre", tie_logits=False, padding_id=3),
    "pre-windows-on-both-sides-without-the-first-norm": CONFIG.replace(
        **STILL, norm_placement="pre", first_norm=False, layer_pattern=("global", "local"), window=2, encoder_layers=2, decoder_layers=2
    ),
    "decoder-only-parallel": CONFIG.replace(**STILL, encoder_layers=0, share_embeddings=False, norm_placement="parallel_shared"),
    "decoder-only": CONFIG.replace(**STILL, encoder_layers=0, share_embeddings=False),
}
TIED, OTHERS = CONFIGS["post-sinusoidal-tied"], CONFIGS["pre-learned-from-the-row-untied"]
PLACE = np.arange(SOURCE)
# Which positions of each row are real.
PATTERNS = {
    "all": [PLACE >= 0] * ROWS,
    "none": [PLACE < 0] * ROWS,
    "right": [row + 3 > PLACE for row in range(ROWS)],
    "left": [row < PLACE for row in range(ROWS)],
    "inside": [PLACE % (row + 2) != 1 for row in range(ROWS)],
    "one-token": [row == PLACE for row in range(ROWS)],
    "mixed": [PLACE < 0, PLACE > 2, PLACE >= 0, PLACE < 4, PLACE % 3 == 1],
}


@pytest.fixture(autouse=True)
def wide(backend: Backend) -> Iterator[None]:
    with backend.wide():
        yield


def tokens(pattern: str, config: TransformerConfig) -> tuple[Any, Any]:
    """Returns source and target of the pattern; the target has it in other rows."""
    rng, real = np.random.default_rng(0), np.stack(PATTERNS[pattern])
    source, target = (
        np.where(mask[:, :length], rng.integers(4, 23, (ROWS, length)), config.padding_id)
        for mask, length in ((real, SOURCE), (real[::-1], TARGET))
    )
    return (source if config.encoder_layers else None), target


def arrays(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Returns parameters by canonical name, in float64: none is 0 or 1."""
    rng = np.random.default_rng(1)
    return {name: 0.3 * rng.normal(size=shape) for name, shape in parameters.shapes(config).items()}


@functools.cache
def models(port: str, config: TransformerConfig) -> tuple[Any, Any]:
    """Returns a model and its call without padding, which JAX compiles: running operation by operation is slow."""
    backend = Backend(port)
    model = backend.loaded(config, arrays(config))
    if port == "jax":
        return model, backend.part("programs.compiled").compiled(model, least=0)
    return model, backend.part("programs.unpadding").unpadded(model, least=0)


def given(backend: Backend, **inputs: Any) -> dict[str, Any]:
    """Returns the inputs as the framework's tensors."""
    flat = {name: value if value is None else backend.weights.from_numpy(value) for name, value in parameters.flatten(inputs).items()}
    return parameters.nest(flat)


def flat(
    backend: Backend, config: TransformerConfig, source: Any, target: Any, least: int = 0, loss: bool = False, **more: Any
) -> list[Any]:
    """Returns the number of flat tokens of source and target in a call, or in a loss; None if a side keeps its rows."""
    unpadding, model = backend.part("programs.unpadding"), models(backend.name, config)[0]
    inputs = given(backend, source=source, target=target, **{name: value for name, value in more.items() if name != "skip_padding"})
    if backend.name == "torch":
        whole = functools.partial(unpadding.real_logits, model) if more.get("skip_padding") else model
        found = unpadding.find(model.training_loss if loss else whole, least, **backend.texts(**inputs)) or (None, None)
    else:
        inputs |= {"skip_padding": True} if more.get("skip_padding") else {}
        inputs = backend.texts(**inputs)
        found = (unpadding.of_loss if loss else unpadding.of_forward)(model if backend.name == "tf" else config, least, **inputs)
    return [None if side is None or side.index_n is None else len(side.index_n) for side in found]


def called(backend: Backend, config: TransformerConfig, skip_padding: bool = False, **inputs: Any) -> Any:
    """Returns a model's output without its padding."""
    model, run = models(backend.name, config)
    if backend.name != "torch":
        return run(**backend.texts(**inputs), skip_padding=skip_padding)
    unpadding = backend.part("programs.unpadding")
    function = functools.partial(unpadding.real_logits, model) if skip_padding else model
    return unpadding.unpadded(function, least=0)(**backend.texts(**inputs))


def close(found: Any, wanted: np.ndarray, **options: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12, **options)


def equals(backend: Backend, config: TransformerConfig, source: Any, target: Any, keep: Any = None) -> None:
    """Checks that logits, loss and every gradient without padding match the reference."""
    tree, masks = parameters.nest(arrays(config)), {} if keep is None else {"keep": keep}
    inputs = given(backend, source=source, target=target, **masks)
    for skip in (True,) if backend.name == "jax" else (True, False):
        expected = function_of("transformer")(tree, config, source, target, skip_padding=skip, **masks)
        close(backend.weights.to_numpy(called(backend, config, skip, **inputs)), expected)

    target = np.concatenate([target[:, :1], target], axis=1)  # masks of the sites cover all but the last target token
    inputs |= given(backend, target=target)
    unpadded = backend.part("programs.unpadding").unpadded
    loss, found = backend.parameter_gradients(
        models(backend.name, config)[0], config, lambda model: unpadded(model.training_loss, least=0)(**inputs, smoothing=SMOOTHING)
    )
    close(loss, transformer.training_loss(tree, config, source, target, SMOOTHING, **masks))
    pulled = transformer.training_loss_vjp(tree, config, source, target, SMOOTHING, **masks, cotangent=np.ones(()))
    wanted = parameters.flatten(pulled["parameters"])
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        close(found[name], array, err_msg=name)


def in_kinds() -> Iterator[Any]:
    """Yields every pattern with one model and every model with one pattern in torch, one pair elsewhere; the rest are kind conformance."""
    for port in PORTS:
        for name in CONFIGS:
            for pattern in PATTERNS:
                few = pattern == "mixed" or CONFIGS[name] == TIED
                first = few if port == "torch" else pattern == "mixed" and CONFIGS[name] == OTHERS
                marks = () if first else pytest.mark.conformance
                yield pytest.param(port, name, pattern, marks=marks)


@pytest.mark.parametrize(("backend", "name", "pattern"), [*in_kinds()], indirect=["backend"])
def test_every_pattern_of_padding_gives_what_the_reference_gives(backend: Backend, name: str, pattern: str) -> None:
    config = CONFIGS[name]
    source, target = tokens(pattern, config)
    found = flat(backend, config, source, target, skip_padding=True)
    assert [side is None for side in found] == [source is None or pattern == "all", pattern == "all"]
    equals(backend, config, source, target)


@pytest.mark.parametrize("backend", ["torch", "tf", conformance("jax")], indirect=True)
def test_keep_masks_that_are_given_are_those_of_rows(backend: Backend) -> None:
    config = CONFIG.replace(attention_bias=True)
    source, target = tokens("mixed", config)
    keep = sites.draw(config, len(source), source.shape[1], target.shape[1], np.random.default_rng(2))
    shared = keep["encoder"]["layers"]["0"]["feed_forward"]
    shared["hidden_dropout"] = shared["hidden_dropout"][:1]  # the same for all rows
    keep["decoder"]["layers"]["0"]["feed_forward_dropout"] = np.ones((1, 1, 1), bool)
    equals(backend, config, source, target, keep)
    if backend.name != "torch":
        shared["hidden_dropout"] = np.ones((2, 1, 1), bool)
        with pytest.raises(ValueError, match="keep must broadcast to the input"):
            models(backend.name, config)[1](**given(backend, source=source, target=target, keep=keep))


def test_masks_that_are_given_say_what_lies_flat(backend: Backend) -> None:
    """Also for soft one-hot rows, which have no id; padding rows have gradient 0."""
    source, target = tokens("right", OTHERS)
    mask_bs, mask_bt = (np.random.default_rng(3).random(ids.shape) < 0.5 for ids in (source, target))
    soft, masks = np.random.default_rng(3).dirichlet(np.ones(23), source.shape), {"source_mask_bs": mask_bs, "target_mask_bt": mask_bt}
    assert all(flat(backend, OTHERS, soft, target, **masks, skip_padding=True))
    assert not any(flat(backend, OTHERS, soft, target))
    inputs = given(backend, target=target, **masks)
    logits, (gradient,) = backend.gradients(lambda soft: called(backend, OTHERS, True, source=soft, **inputs), soft)
    wanted: dict[str, Any] = {"source": soft, "target": target, **masks, "skip_padding": True}
    expected = function_of("transformer")(parameters.nest(arrays(OTHERS)), OTHERS, **wanted)
    close(logits, expected)
    pulled = function_of("transformer_vjp")(parameters.nest(arrays(OTHERS)), OTHERS, **wanted, cotangent=2 * expected)
    close(gradient, pulled["source"])
    with pytest.raises(ValueError, match="source mask must have"):
        called(backend, OTHERS, **given(backend, source=soft, target=target, source_mask_bs=mask_bs[:, 1:]))


def test_rows_stay_if_little_is_saved(backend: Backend) -> None:
    source, target = tokens("right", OTHERS)
    full, width = (np.ones_like(source), np.ones_like(target)), OTHERS.model_width
    assert flat(backend, OTHERS, *full, skip_padding=True) == flat(backend, OTHERS, *full, loss=True) == [None, None]
    saved = (source.size - flat(backend, OTHERS, source, target)[0]) * width
    assert [bool(flat(backend, OTHERS, source, target, least)[0]) for least in (saved, saved + 1)] == [True, False]
    source[:] = 1
    source[0, :2] = 0  # fewer than a sixteenth of the positions
    assert flat(backend, OTHERS, source, target) == [None, None]
    unknown = OTHERS.replace(padding_id=None)
    for settings in ({"skip_padding": True}, {"loss": True}):
        assert flat(backend, unknown, *tokens("right", OTHERS), **settings) == [None, None]


@pytest.mark.parametrize("backend", ["tf", "jax"], indirect=True)
def test_a_shape_of_rows_has_few_counts_of_tokens_which_are_those_of_both_sides_in_a_loss(backend: Backend) -> None:
    """Few graphs per call, and a step has fewer than one for each pair of lengths; torch's single graph serves every number."""
    steps, counts = backend.part("programs.unpadding").STEPS, set()
    for count in range(401):
        ids = np.where(np.arange(400).reshape(20, 20) < count, 5, 0)
        side = flat(backend, OTHERS, ids, ids)[0]
        assert 400 - side >= 400 / 16 if side else count / 400 > 1 - 1 / 16 - 1 / steps
        assert side is None or side - count <= 400 / steps + 1
        counts.add(side)
    assert len(counts) <= steps
    rng = np.random.default_rng(0)

    def drawn(shares: Any) -> tuple[Any, ...]:
        """Returns the token counts of a loss over rows with about this share of padding on each side."""
        ids = [
            np.where(np.arange(length) < rng.binomial(length, 1 - share, (16, 1)), 5, 0)
            for share, length in zip(shares, (32, 33), strict=True)
        ]
        return tuple(flat(backend, TIED, *ids, loss=True))

    pairs = {drawn(rng.uniform(0.2, 0.9, 2)) for _ in range(200)}
    assert 6 <= len(pairs) < steps
    assert all(source == target for source, target in pairs)
    pairs |= {drawn(rng.choice([0, 0.2, 0.5, 0.9], 2)) for _ in range(200)}
    assert (None, None) in pairs
    assert len(pairs) < 3 * steps  # the same lengths if the other side keeps its rows


VARIANTS = {"parts": (UNTIED, FULL), "tied": (CONFIG, RECIPE)}
RUNS = [
    ("torch", False, "cpu", "parts"),
    conformance("tf", False, "cpu", "parts"),
    *(conformance(port, True, "cpu", "parts") for port in PORTS),
    *(conformance(port, port == "jax", "cpu", "tied") for port in ("torch", "jax")),
    *(
        pytest.param(port, compiled, "cuda", "parts", marks=pytest.mark.gpu)
        for port in ("torch", "jax")
        for compiled in {True, port == "jax"}
    ),
]


@pytest.mark.parametrize(("backend", "compiled", "device", "name"), RUNS, indirect=["backend"])
def test_steps_without_padding_are_the_reference_s_and_a_resumed_run_goes_on_bit_for_bit(
    backend: Backend, compiled: bool, device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU: the host finds the tokens and passes them to the device; checks forward and backward numbers and their bits."""
    unpadding, which = backend.part("programs.unpadding"), "find" if backend.name == "torch" else "of_loss"
    find, sides = getattr(unpadding, which), []
    monkeypatch.setattr(unpadding, which, lambda *args, **named: sides.append(find(*args, **named)) or sides[-1])
    monkeypatch.setattr(unpadding, "LEAST", 0)
    run = begin(backend, *VARIANTS[name], compiled=compiled, device=device)
    first = run.state()
    equals_the_reference(run, *VARIANTS[name], steps=3)
    assert sides
    assert all(found.target for found in sides)

    def after(state: dict[str, np.ndarray], *steps: int) -> dict[str, np.ndarray]:
        run.load_state(state, steps[0])
        for step in steps:
            run.train_step(*batch(step))  # draws random keep masks
        return run.state()

    assert bits(after(after(first, 0, 1), 2)) == bits(after(first, 0, 1, 2))
