"""Builds a port from the plain versions: one function of the case per component."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.gate import Gate
from reference_numpy.parameters import axes, flatten, nest, shapes
from reference_numpy.strategy import Strategy
from rosettaformer.judge.expectation.components import COMPONENTS, config_arguments, function_of
from rosettaformer.ports import Case, NotCovered

DEFAULTS = {field.name: field.default for field in dataclasses.fields(Strategy)}
ANSWERED_APART = ("adam", "clip_global_norm", "initialise")  # plain versions that work on a single tensor
# config fields -> the values that layers and models assume
LAYER = {"norm": "layer", "gated_feed_forward": False, "query_key_norm": "none", "score_scale": None, "score_cap": None,
         "norm_one_plus_scale": False, "logit_scale": 1, "logit_cap": None, "attention_sinks": "none", "experts": 0,
         "gate_limit": None, "hidden_offset": 0, "residual_multiplier": 1, "embedding_multiplier": 1,
         "query_key_norm_after_rotation": False, "query_key_value_clip": None, "norm_scale": True,
         "query_key_norm_offset": True}  # fmt: skip
MODEL = LAYER | {"norm_placement": "post", "activation": "relu", "positions": "sinusoidal", "sinusoid_layout": "interleaved",
                 "scale_embedding": True, "position_start": "first_token", "embedding_norm": False, "segments": 0, "pooler": False,
                 "classes": 0, "masked_language_head": False,}  # fmt: skip
ROUTER = {"selection_bias": False, "router_groups": 1, "router_scale": 1}
# scores of the router -> its plain function, and the config fields that it assumes
ROUTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax_router", ROUTER | {"router_epsilon": 0}),
    "chosen_softmax": ("chosen_softmax_router", ROUTER | {"router_normalize": False}),
    "sigmoid": ("sigmoid_router", {"selection_bias": True, "router_normalize": True, "router_epsilon": 1e-20}),
}
# arguments without effect unless there is a keep mask or RoPE (not covered), or half precision; and the gate, which selects a function
WITHOUT_EFFECT = ("config", "dropout_rate", "layer", "position_bs", "position_bt", "cast_before_scale", "round_scale", "gate")
BERT = LAYER | {"norm_placement": "post", "positions": "learned", "position_start": "row", "position_offset": 0,
                "scale_embedding": False, "embedding_norm": True, "pooler_activation": "tanh"}  # fmt: skip
OF_MODEL = ("transformer", "training_loss", "greedy_search")
OF_BERT = ("pool", "classify", "masked_language_logits", "classification_loss")
STACKS = ("encoder_layer", "decoder_layer", "encoder", "decoder")


class Port:
    """Runs cases with the functions of a plain file.

    native: converts a NumPy array to the framework; back: converts it back.
    """

    def __init__(self, plain: Any, native: Callable[[Any], Any], back: Callable[[Any], np.ndarray] = np.asarray) -> None:
        self.plain, self.native, self.back = plain, native, back

    def functions(self) -> dict[str, Callable[[Case], Any]]:
        """Returns the functions of a port file by component."""
        every = [component for component in COMPONENTS if component in ANSWERED_APART or self._names(component)]
        return {component: self._answering(component) for component in every}

    def _answering(self, component: str) -> Callable[[Case], Any]:
        return getattr(self, f"_{component}", self._answer)

    def _names(self, component: str) -> list[str]:
        """Returns the plain functions from which the case selects."""
        names = (component, *VARIANTS.get(component, ()))
        return [name for name in names if hasattr(self.plain, name)]

    def _answer(self, case: Case) -> Any:
        function = getattr(self.plain, _variant(case))
        given = {name: value for name, value in _given(case).items() if value is not None}
        given = self._with_masks(case, given)
        taken, accepted = inspect.signature(function).parameters, inspect.signature(function_of(case.component)).parameters
        for name, value in given.items():
            given_for_nothing = not isinstance(value, np.ndarray) and value == accepted[name].default
            if name not in (*taken, *WITHOUT_EFFECT) and not given_for_nothing:
                raise NotCovered(f"the plain version takes no {name}")
        given |= {name: self._setting(case, name) for name in taken if name not in given}
        result = self.back(function(**{name: self._converted(given[name]) for name in taken}))
        return result.astype(np.int64) if result.dtype.kind == "i" else result

    def _with_masks(self, case: Case, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments with causality combined into the mask, as callers of a plain attention do."""
        given = dict(given)
        name = {"decoder_layer": "self_mask_bhts", "decoder": "self_mask_bhts"}.get(case.component, "mask_bhts")
        if given.pop("causal", False) or name == "self_mask_bhts":
            arrays = [value for key, value in given.items() if key in ("x_btd", "query_btd", "query_bthk", "memory_bsd", "key_bsgk")]
            lengths = arrays[0].shape[1], arrays[0 if "x_btd" in given else 1].shape[1]
            causal = self.back(self.plain.causal_mask(*lengths))
            given[name] = self.back(self.plain.combine_masks(*map(self._converted, (given.get(name, causal), causal))))
        if "sink_h" in given:
            given.setdefault("mask_bhts", np.ones((1, 1, given["query_bthk"].shape[1], given["key_bsgk"].shape[1]), bool))
        if case.component in OF_BERT:
            shape = given["source"].shape
            given = {"source_mask_bs": np.ones(shape, bool), "segment_bs": np.zeros(shape, int)} | given
        if case.component == "cross_entropy":
            given.setdefault("mask_bt", np.ones(given["label_bt"].shape, bool))
            if not given["mask_bt"].any():
                raise NotCovered("the plain version divides by the number of labels")
        if case.component == "router_loss":
            given.setdefault("mask_bt", np.ones(given["logits_lbtx"].shape[1:3], bool))
            if not given["mask_bt"].any() or not np.isfinite(given["logits_lbtx"]).all():
                raise NotCovered("the plain version divides by the number of tokens, and reads all logits")
        return given

    def _setting(self, case: Case, name: str) -> Any:
        """Returns an argument that is not in inputs or parameters: a part of the model, or a config field."""
        config = case.config
        kind = case.component.partition("_")[0]
        if name in ("router", "network"):
            return self._bound(_router(config) if name == "router" else _feed_forward(config), case)
        found = {
            "activation": getattr(self.plain, config.activation),
            "layer": getattr(self.plain, f"{config.norm_placement}_norm_{kind}_layer", None),
            "base": config.rotary_base,
            "limit": math.inf if config.gate_limit is None else config.gate_limit,
            "offset": config.hidden_offset,
            "count": config.experts_per_token,
            "normalize": config.router_normalize,
            "groups": config.router_groups,
            "kept": config.router_groups_kept,
            "outside": 0.0 if config.router_group_mask == "zero" else -math.inf,
            "scale": config.router_scale,
            "padding_id": config.padding_id,
            "epsilon": config.epsilon,
            "smoothing": 0.0,
            "router_aux_weight": 0.0,
            "router_z_weight": 0.0,
            "top_k": 0,
            "top_p": 1.0,
            "temperature": 1.0,
            "repetition_penalty": 1.0,
        }
        return found.get(name)

    def _bound(self, name: str, case: Case) -> Callable[..., Any]:
        """Returns a plain function of parameters and vectors, with its other arguments."""
        function = getattr(self.plain, name)
        others = [argument for argument in inspect.signature(function).parameters if argument not in ("parameters", "x_btd")]
        return functools.partial(function, **{argument: self._setting(case, argument) for argument in others})

    def _converted(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._converted(part) for name, part in value.items()}
        return self.native(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value

    def _noam(self, case: Case) -> np.ndarray:
        step = self.native(np.asarray(case.inputs["step"], float))
        return self.back(self.plain.noam(step, case.config.model_width, int(case.inputs["warmup"])))

    def _adam(self, case: Case) -> dict[str, Any]:
        trees = {key: flatten(case.inputs[key]) for key in ("parameters", "gradients", "first_moment", "second_moment")}
        scalars = [_given(case).get(name, 0.0) for name in ("step", "learning_rate", "beta_1", "beta_2", "epsilon", "weight_decay")]
        results: dict[str, dict[str, Any]] = {"parameters": {}, "first_moment": {}, "second_moment": {}}
        for name in trees["parameters"]:
            decay = scalars[-1] if name.rpartition(".")[2] in ("kernel", "table") else 0.0
            answer = self.plain.adam(*(self._converted(tree[name]) for tree in trees.values()), *scalars[:-1], decay)
            for kind, value in zip(results, answer, strict=True):
                results[kind][name] = self.back(value)
        return {kind: nest(tree) for kind, tree in results.items()}

    def _clip_global_norm(self, case: Case) -> dict[str, Any]:
        flat = flatten(case.inputs["gradients"])
        if not any(value.any() for value in flat.values()):
            raise NotCovered("the plain version divides by the norm")
        clipped = self.plain.clip_global_norm([self._converted(value) for value in flat.values()], case.inputs["limit"])
        return nest(dict(zip(flat, map(self.back, clipped), strict=True)))

    def _greedy_search(self, case: Case) -> dict[str, np.ndarray]:
        """Returns the tokens of the plain search, and their log p under the plain model."""
        _variant(case)
        given, padding_id, epsilon = _given(case), case.config.padding_id, case.config.epsilon
        strategy = {name: value for name, value in given.pop("strategy").items() if value != DEFAULTS.get(name)}
        start_id, end_id, steps = (strategy.pop(name) for name in ("start_id", "end_id", "max_new_tokens"))
        source, prefix = given.pop("source"), given.pop("prefix", None)
        if padding_id is None or strategy or given.keys() - {"parameters", "config"}:
            raise NotCovered("the plain version takes no masks or penalties and pads with an id")
        prefix = np.full((len(source), 1), start_id) if prefix is None else prefix
        allowed_v = np.isin(np.arange(case.config.target_vocabulary), [padding_id, *({start_id} - {end_id})], invert=True)
        own, source, target, allowed = map(self._converted, (given["parameters"], source, prefix, allowed_v))
        target = self.plain.greedy_search(own, source, target, allowed, padding_id, end_id, steps, epsilon)
        logits_btv = self.back(self.plain.transformer(own, source, target, padding_id, epsilon))[:, prefix.shape[1] - 1 : -1]
        log_p_btv = logits_btv - np.log(np.exp(logits_btv).sum(-1, keepdims=True, where=allowed_v))
        token_bn, left = self.back(target)[:, prefix.shape[1] :], steps - logits_btv.shape[1]
        log_p_bn = np.where(token_bn == padding_id, 0, np.take_along_axis(log_p_btv, token_bn[:, :, None], 2)[:, :, 0])
        filled = ((0, 0), (0, left))  # the plain version stops when all rows have ended
        return {"token_bn": np.pad(token_bn, filled, constant_values=padding_id), "log_p_bn": np.pad(log_p_bn, filled)}

    def _initialise(self, case: Case) -> dict[str, np.ndarray]:
        return dict(self._initial(case))

    def _initial(self, case: Case) -> Iterator[tuple[str, np.ndarray]]:
        letters, first = axes(case.config), case.inputs["seed"]
        for seed, (name, shape) in enumerate(shapes(case.config).items(), first):
            kind = name.rpartition(".")[2]
            if kind == "kernel":  # the input axes are `h e` of the output projection `h e d`, otherwise the first
                fan_in = int(np.prod(shape[:-1] if letters[name].endswith(" d") else shape[:1]))
                yield name, self.back(self.plain.initial_kernel(seed, shape, fan_in, int(np.prod(shape)) // fan_in))
            elif kind == "table":
                yield name, self.back(self.plain.initial_table(seed, shape))
            else:
                yield name, np.full(shape, float(kind == "scale" and not case.config.norm_one_plus_scale))


VARIANTS = {
    "activation": ("relu", "relu_squared", "gelu_erf", "gelu_tanh", "gelu_sigmoid", "silu"),
    "feed_forward": ("gated_feed_forward",),
    "router": ("softmax_router",),
    "rotary_embedding": ("rotary_halves", "rotary_neighbours"),
    "encoder_layer": ("pre_norm_encoder_layer", "post_norm_encoder_layer"),
    "decoder_layer": ("pre_norm_decoder_layer", "post_norm_decoder_layer"),
}


def _variant(case: Case) -> str:
    """Returns the plain function that runs a case; raises NotCovered if there is none."""
    config, component = case.config, case.component
    assumed = LAYER if component in STACKS else MODEL if component in OF_MODEL else BERT if component in OF_BERT else {}
    if component == "multi_head_attention":
        assumed = {name: LAYER[name] for name in ("query_key_norm", "query_key_value_clip", "score_scale", "score_cap", "attention_sinks")}
    if component == "pooler":
        assumed = {"pooler_activation": BERT["pooler_activation"]}
    if component == "masked_language_head":
        assumed = {name: LAYER[name] for name in ("norm", "norm_scale", "norm_one_plus_scale", "logit_scale", "logit_cap")}
    _require(config, assumed)
    attends = component in ("multi_head_attention", *STACKS)
    if attends and config.positions == "rotary":
        raise NotCovered("the plain version has no RoPE")
    if any(getattr(value, "size", 1) == 0 for value in case.inputs.values()):
        raise NotCovered("there is nothing to compute")
    whole = config.segments if component in OF_BERT else config.encoder_layers and config.decoder_layers
    if component in (*OF_BERT, *OF_MODEL) and not whole:
        raise NotCovered("the plain models are the original Transformer and BERT")
    for name in ("token", "source", "target"):
        if getattr(case.inputs.get(name), "dtype", np.dtype(int)).kind == "f":
            raise NotCovered("the plain version takes only ids")
    without = {"dropout": "keep", "token_mask": "padding_id", "layer_norm": "offset"}.get(component)
    if without and without not in {**case.parameters, **{k: v for k, v in _given(case).items() if v is not None}}:
        raise NotCovered(f"the plain version takes {without}")
    if component == "combine_masks" and any(value is None for value in case.inputs.values()):
        raise NotCovered("the plain version combines two masks")
    if (bias := case.inputs.get("bias_bhts")) is not None and np.isneginf(bias).any():
        raise NotCovered("the plain version hides keys only by its mask")
    if component == "rms_norm" and "offset" in case.parameters:
        raise NotCovered("the plain version has no offset")
    if component == "rotary_embedding":
        kind = config.layer_kind(case.inputs.get("layer", 0))
        if config.rotary_size != config.key_size or kind.scaling.kind != "none" or kind.base != config.rotary_base:
            raise NotCovered("the plain version rotates all features, with unscaled frequencies")
        return "rotary_halves" if config.rotary_layout == "halves" else "rotary_neighbours"
    if component in ("router", "mixture_of_experts"):
        return _router(config) if component == "router" else component
    if component == "scaled_dot_product_attention" and "sink_h" in case.inputs:
        return "attention_with_sink"
    if component in ("encoder_layer", "decoder_layer", "encoder", "decoder") and config.norm_placement not in ("pre", "post"):
        raise NotCovered("the plain version has its norms before or after the sub-layers")
    return {
        "activation": config.activation,
        "feed_forward": _feed_forward(config),
        "encoder_layer": f"{config.norm_placement}_norm_encoder_layer",
        "decoder_layer": f"{config.norm_placement}_norm_decoder_layer",
    }.get(component, component)


def _require(config: TransformerConfig, assumed: dict[str, Any]) -> None:
    for field, value in assumed.items():
        if getattr(config, field) != value:
            raise NotCovered(f"the plain version fixes {field}={value!r}")


def _feed_forward(config: TransformerConfig) -> str:
    kind = "" if not config.gated_feed_forward else "gated_" if config.gate == Gate() else "limited_"
    return f"{kind}feed_forward"


def _router(config: TransformerConfig) -> str:
    if config.router_scores not in ROUTERS:
        raise NotCovered(f"no plain router has router_scores={config.router_scores!r}")
    name, assumed = ROUTERS[config.router_scores]
    _require(config, assumed)
    return name


def _given(case: Case) -> dict[str, Any]:
    """Returns the arguments of the reference's function that the case passes."""
    given = dict(case.inputs) | config_arguments(case.component, case.config, case.dtype)
    given.pop("dtype", None)
    given.pop("activation_name", None)
    if case.component == "activation":
        del given["name"]
    accepted = inspect.signature(function_of(case.component)).parameters
    own = nest(case.parameters)
    if case.component == "masked_language_logits" and case.config.tie_logits:  # here and below: a tensor that the model uses twice
        own["masked_language_head"]["logits"]["kernel"] = own["source_embedding"]["table"].T
    if case.component in OF_MODEL:
        own.setdefault("target_embedding", own.get("source_embedding"))
        own["logits"] = {"kernel": own["target_embedding"]["table"].T} | own.get("logits", {})
    return given | ({"parameters": own} if "parameters" in accepted and "parameters" not in given else {})
