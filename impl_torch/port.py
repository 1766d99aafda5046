"""The components that the judge calls, by name; each is built from a config."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks
from reference_numpy.parameters import flatten, nest
from reference_numpy.recipe import Recipe
from reference_numpy.scores import Scores

from . import cache, optimizer
from .attention import MultiHeadAttention, attention_weights, scaled_dot_product_attention
from .decoding import Searcher
from .dropout import Dropout
from .embedding import SegmentEmbedding, logits, token_embedding
from .experts import MixtureOfExperts, Router
from .feed_forward import FeedForward, activation
from .heads import Classifier, MaskedLanguageHead, Pooler
from .layers import DecoderLayer, EncoderLayer, Layer
from .loss import cross_entropy, router_loss
from .mask import causal_mask, combine_masks, padding_mask, token_mask, window_mask
from .normalization import norm
from .optimizer import Tree, clip_global_norm
from .positional_encoding import position_embedding, positional_encoding, token_positions
from .precision import dtype_name
from .programs import compiled as programs
from .programs import static_cache
from .programs.fused import fused, pack
from .programs.unpadding import real_logits, unpadded
from .rotary import rotary_embedding
from .sampling import draw, penalise, truncate
from .schedule import noam
from .softmax import soft_cap, softmax
from .stacks import Decoder, Encoder, rotation
from .training import Trainer
from .transformer import Transformer
from .values import Drop, Heads, Text
from .weights import TABLE, export

if TYPE_CHECKING:
    from .programs.on_mesh import Case

__all__ = ["compiled", "components", "framework", "modes", "on_mesh", "weights"]

Output = TypeVar("Output")
Build = Callable[[TransformerConfig, torch.dtype], Callable[..., Any]]
Weighed = Tensor | tuple[Tensor, Tensor]  # with return_weights, also the weights


def adam(
    parameters: Tree, gradients: Tree, step: int, learning_rate: float, **others: Any
) -> dict[str, Tree]:
    """Takes one step of the training optimizer. others: as in `optimizer.adam`."""
    trained = {name: nn.Parameter(tensor) for name, tensor in flatten(parameters).items()}
    betas = others.pop("beta_1"), others.pop("beta_2")
    stepping = optimizer.adam(trained, steps=step - 1, betas=betas, **others)
    for name, gradient in flatten(gradients).items():
        trained[name].grad = gradient
    for group in stepping.param_groups:
        group["lr"] = learning_rate
    stepping.step()
    moments = {name: others[name] for name in ("first_moment", "second_moment")}
    return {"parameters": nest(trained), **moments}


def initialise(config: TransformerConfig, dtype: torch.dtype, seed: int) -> dict[str, np.ndarray]:
    """Returns the parameters of a new model."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return export(Transformer(config).to(dtype), config)


def decode_in_steps(model: Transformer, compiled: bool = False, **inputs: Any) -> Tensor:
    """Decodes incrementally; compiled, with the weights, cache and program of a search."""
    if not compiled:
        return cache.decode_in_steps(model, **inputs)
    model, step = fused(model), programs.compiled_step(static_cache.forward_step)
    pack(model, len(inputs["target"]))
    return static_cache.decode_in_steps(model, **inputs, step=step)


def search(
    model: Transformer, method: Callable[..., Output], compiled: bool = False, **inputs: Any
) -> Output:
    """Searches with a new snapshot."""
    return method(Searcher(model, compiled=compiled), **inputs)


def dot_product(
    query_bthk: Tensor,
    key_bsgk: Tensor,
    value_bsge: Tensor,
    sink_h: Tensor | None = None,
    return_weights: bool = False,
    keep_bhts: Tensor | None = None,
    dropout_rate: float = 0.0,
    **inputs: Any,
) -> Weighed:
    """Computes `scaled_dot_product_attention` and, with return_weights, the weights.

    inputs: mask, bias and the fields of `Scores`.
    """
    checks.check_attention(query_bthk.shape, key_bsgk.shape, value_bsge.shape)
    batch, target, count, _ = query_bthk.shape
    mask_bhts = joined(inputs, (batch, count, target, key_bsgk.shape[1]))
    chosen, drop = Scores(**inputs), Drop() if keep_bhts is None else Drop(keep_bhts, dropout_rate)
    heads = Heads(query_bthk, key_bsgk, value_bsge, sink_h)
    output_bthe = scaled_dot_product_attention(heads, mask_bhts, chosen, drop)
    if not return_weights:
        return output_bthe
    return output_bthe, attention_weights(query_bthk, key_bsgk, mask_bhts, chosen, sink_h)


def multi_head(
    module: MultiHeadAttention,
    query_btd: Tensor,
    memory_bsd: Tensor,
    causal: bool = False,
    return_weights: bool = False,
    position_bt: Tensor | None = None,
    **inputs: Any,
) -> Weighed:
    """Calls an attention as in a first layer; with return_weights also returns the weights."""
    (batch, target, _), source = query_btd.shape, memory_bsd.shape[1]
    mask_bhts = joined(inputs, (batch, module.config.heads, target, source))
    if causal:
        mask_bhts = combine_masks(mask_bhts, causal_mask(target, source, query_btd.device))
    (turned,) = rotation(module.config, 1, query_btd, position_bt)
    output_btd = module(query_btd, memory_bsd, mask_bhts, rotation=turned, **inputs)
    if not return_weights:
        return output_btd
    weights_bhts, _ = module.weights(module.project(query_btd, memory_bsd, turned), mask_bhts)
    return output_btd, weights_bhts


def joined(inputs: dict[str, Any], scores: Sequence[int]) -> Tensor | None:
    """Removes mask and bias from the inputs and merges them; floating if there is a bias."""
    mask_bhts, bias_bhts = inputs.pop("mask_bhts", None), inputs.pop("bias_bhts", None)
    if bias_bhts is not None:
        checks.check_bias(bias_bhts.shape, dtype_name(bias_bhts.dtype), scores)
    if mask_bhts is not None:
        checks.check_mask(mask_bhts.shape, dtype_name(mask_bhts.dtype), scores)
    return mask_bhts if bias_bhts is None else combine_masks(bias_bhts, mask_bhts)


def first_layer(
    module: Layer, x_btd: Tensor, position_bt: Tensor | None = None, **inputs: Any
) -> Tensor:
    """Calls a layer as the first of its stack."""
    (turned,) = rotation(module.config, 1, x_btd, position_bt)
    return module(x_btd, rotation=turned, **inputs)


def of_texts(
    call: Callable[..., Output],
    config: TransformerConfig,
    real_call: Callable[..., Output] | None = None,
    skip_padding: bool = False,
    **inputs: Any,
) -> Output:
    """Calls a model or its method with texts; with skip_padding, calls real_call instead."""
    source, target = inputs.pop("source", None), inputs.pop("target", None)
    of_source = {name: inputs.pop(name, None) for name in ("source_mask_bs", "segment_bs")}
    target_mask_bt = inputs.pop("target_mask_bt", None)
    if source is None and any(value is not None for value in of_source.values()):
        checks.check_source_given(config.encoder_layers, source, **of_source)
    if target is None and target_mask_bt is not None:
        checks.check_target_given(config.decoder_layers, target, target_mask_bt=target_mask_bt)
    if target is not None:
        inputs["target"] = Text(target, target_mask_bt)
    read = None if source is None else Text(source, *of_source.values())
    return (real_call if skip_padding and real_call else call)(source=read, **inputs)


def whole(config: TransformerConfig, dtype: torch.dtype) -> Callable[..., Tensor]:
    """Returns the whole model."""
    model = Transformer(config)
    return partial(of_texts, model, config, partial(real_logits, model))


def random_dropout(dropout: Dropout, x: Tensor, seed: int) -> Tensor:
    """Applies random dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return dropout(x)


def training_loss(model: Transformer, **inputs: Any) -> Tensor:
    """Computes the loss of a model without padding, even if little is saved."""
    return unpadded(model.training_loss, least=0)(**inputs)


def on_mesh(case: "Case") -> dict[str, np.ndarray]:
    """Computes a case on its mesh, of which this process is one device: the component's result, the
    gradients of a `_vjp`, or the losses and parameters of `training_steps`.
    """
    if case.component == "training_steps":
        return training_steps(case)
    from .programs.on_mesh import answer

    return answer(case, components.get(case.component.removesuffix("_vjp")))


def training_steps(case: "Case") -> dict[str, np.ndarray]:
    """Trains one step on each batch of `target`, `n b t`, on the mesh of the case."""
    given = nest(flatten(case.inputs))
    options: dict[str, Any] = {"device": case.device, "mesh": case.mesh}
    options["recompute"] = bool(given.get("recompute", False))
    run = Trainer(case.config, Recipe(**given["recipe"]), case.parameters, **options)
    losses = []
    for index, target in enumerate(given["target"]):
        source = None if given.get("source") is None else given["source"][index]
        keep = {site: mask[index] for site, mask in flatten(given.get("keep") or {}).items()}
        losses.append(float(run.train_step(source, target, keep or None)))
    parameters = {name: array for name, array in run.tensors() if name.startswith("parameters.")}
    return {"losses": np.array(losses)} | parameters


def compiled(function: Callable[..., Output]) -> Callable[..., Output]:
    """Compiles a component; a model and its loss skip padding, even if little is saved."""
    if isinstance(function, partial) and function.func is of_texts:
        call, config, *real = function.args
        graphs = (programs.compiled(one, least=0) for one in real)
        graph: Callable[..., Output] = programs.compiled(call, least=0)
        return partial(of_texts, graph, config, next(graphs, None))
    if isinstance(function, partial) and function.func is training_loss:
        function = function.args[0].training_loss
    return programs.compiled(function, least=0)


def always(function: Callable[..., Any]) -> Build:
    """Builds a function that does not depend on the config."""
    return lambda config, dtype: function


def method(name: str) -> Build:
    """Builds a method of a whole model that takes texts."""
    return lambda config, dtype: partial(of_texts, getattr(Transformer(config), name), config)


FUNCTIONS = (
    padding_mask, causal_mask, window_mask, combine_masks, softmax, soft_cap, penalise, truncate,
    draw, cross_entropy, adam, clip_global_norm,
)  # fmt: skip
METHODS = ("pool", "classify", "classification_loss", "masked_language_logits", "states")
framework = "torch"
modes = ("eager", "compiled")
weights = TABLE
components: dict[str, Build] = {
    "embedding": lambda config, dtype: token_embedding(config, config.source_vocabulary),
    "segment_embedding": lambda config, dtype: SegmentEmbedding(
        config.segments, config.model_width
    ),
    "token_positions": lambda config, dtype: partial(token_positions, start=config.position_start),
    "position_embedding": lambda config, dtype: position_embedding(config),
    "positional_encoding": lambda config, dtype: partial(
        positional_encoding, width=config.model_width, dtype=dtype, layout=config.sinusoid_layout
    ),
    "rotary_embedding": lambda config, dtype: partial(rotary_embedding, config=config),
    "token_mask": lambda config, dtype: partial(token_mask, padding_id=config.padding_id),
    "scaled_dot_product_attention": lambda config, dtype: dot_product,
    "multi_head_attention": lambda config, dtype: partial(multi_head, MultiHeadAttention(config)),
    "activation": lambda config, dtype: partial(activation, name=config.activation),
    "feed_forward": lambda config, dtype: FeedForward(config),
    "router": lambda config, dtype: Router(config),
    "router_loss": lambda config, dtype: partial(router_loss, per_token=config.experts_per_token),
    "mixture_of_experts": lambda config, dtype: MixtureOfExperts(config),
    "layer_norm": lambda config, dtype: norm(config.replace(norm="layer")),
    "rms_norm": lambda config, dtype: norm(config.replace(norm="rms")),
    "dropout": lambda config, dtype: Dropout(config.dropout_rate),
    "encoder_layer": lambda config, dtype: partial(first_layer, EncoderLayer(config)),
    "decoder_layer": lambda config, dtype: partial(first_layer, DecoderLayer(config)),
    "encoder": lambda config, dtype: Encoder(config),
    "decoder": lambda config, dtype: Decoder(config),
    "logits": lambda config, dtype: logits(config, config.target_vocabulary),
    "pooler": lambda config, dtype: Pooler(config.model_width, config.pooler_activation),
    "classifier": lambda config, dtype: Classifier(
        config.model_width, config.classes, config.classifier_dropout_rate
    ),
    "masked_language_head": lambda config, dtype: MaskedLanguageHead(config),
    "transformer": whole,
    "decode_in_steps": lambda config, dtype: partial(decode_in_steps, Transformer(config)),
    "greedy_search": lambda config, dtype: partial(
        search, Transformer(config), Searcher.greedy_search
    ),
    "sample": lambda config, dtype: partial(search, Transformer(config), Searcher.sample),
    "beam_search": lambda config, dtype: partial(search, Transformer(config), Searcher.beam_search),
    "training_loss": lambda config, dtype: partial(training_loss, Transformer(config)),
    "noam": lambda config, dtype: partial(noam, width=config.model_width, dtype=dtype),
    "initialise": lambda config, dtype: partial(initialise, config, dtype),
    "random_dropout": lambda config, dtype: partial(
        random_dropout, Dropout(config.dropout_rate).train()
    ),
    **{function.__name__: always(function) for function in FUNCTIONS},
    **{name: method(name) for name in METHODS},
}
