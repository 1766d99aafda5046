"""What is known of a user's class: how it is built, what its parameters are, and what is open."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import preset

from ..processes import words
from . import construction, fields, walking
from .calling import called
from .draft import Choice, Draft, choices_of
from .inputs import INPUTS, is_model
from .matching import matched
from .source import Source
from .trials import example
from .trying import is_causal
from .walking import Leaf

__all__ = ["SIZES", "drafted"]

WIDTH, HEADS, SIZE = 12, 3, 4
SIZES: dict[str, Any] = {
    "source_vocabulary": 11, "target_vocabulary": 17, "model_width": WIDTH, "heads": HEADS, "key_value_heads": HEADS, "key_size": SIZE,
    "value_size": SIZE, "feed_forward_width": 20, "encoder_layers": 2, "decoder_layers": 2, "padding_id": 0,
    "positions": "learned", "max_positions": 256,  # more than any case has
}  # fmt: skip


def drafted(source: Source, component: str, wanted: str, given: Mapping[str, str]) -> Draft:
    plan = construction.plan(source.make, source.name, source.module, given)
    sizes = _sizes(plan)
    module = plan.make(preset("semillero", **sizes))
    framework = walking.framework_of(module)
    if not framework or wanted not in ("", framework, "jax" if framework == "linen" else ""):
        raise ValueError(f"{source.name} must give a module of {wanted or 'torch, Keras or Flax'}; got {type(module).__name__}")
    variables = _called(module, framework, component, plan, sizes) if framework in ("tf", "linen") else None
    leaves = walking.leaves(module, variables)
    sizes |= _inferred(leaves, plan)
    draft = _draft_of(component or _component(leaves, sizes), source, framework, plan, sizes, leaves, module)
    if not component and draft.component in ("encoder_layer", "encoder") and is_causal(draft):
        other = draft.component.replace("encoder", "decoder")
        draft = _draft_of(other, source, framework, plan, sizes, leaves, module)
    return draft


def _draft_of(
    component: str, source: Source, framework: str, plan: construction.Construction, sizes: dict[str, Any], leaves: list[Leaf], module: Any
) -> Draft:
    """What is known of the module as that component."""
    found = matched(component, leaves, _letters(sizes))
    if is_model(component) and component != found.shown["model"]:
        raise ValueError(f"--component must be what the parameters of {source.name} are, {found.shown['model']}; got {component}")
    alone = component == "transformer" and not found.shown["encoder_layers"]
    alone = alone or (component in ("decoder_layer", "decoder") and not _crosses(found.root))
    call = called(component, walking.signature(module), "jax" if framework == "linen" else framework, alone)
    if "itself" in call.given.values():
        raise ValueError(
            f"{source.name} attends to its own input alone, and the cases of {component} have queries and memory that differ; "
            "name the layer or the model that contains it"
        )
    if alone or component == "decoder":
        plan = plan.replaced(encoder_layers="config.decoder_layers", source_vocabulary="config.target_vocabulary")
    draft = Draft(
        source, component, framework, plan, sizes, type(module), found, call, walking.signature(module), alone, found.shown.get("rows", 0)
    )
    draft.fixed = fields.fixed(draft, found.shown)
    draft.choices = [*fields.choices(draft, walking.epsilon(module)), *choices_of(draft)]
    draft.choices += [Choice(f"argument {name}", tuple(texts), call.sides[name]) for name, texts in call.masks.items()]
    return draft


def _called(module: Any, framework: str, component: str, plan: construction.Construction, sizes: dict[str, Any]) -> Any:
    """Calls a Keras layer, or initialises a Linen module, which have no parameters before they are given inputs; what Linen's `init` gives.

    Raises ValueError where no component's inputs fit the module.
    """
    vocabulary = {"source_vocabulary", "target_vocabulary"} & plan.fields
    arguments, problems = walking.signature(module), []
    likely = (
        (["transformer"] * bool(sizes["decoder_layers"]) + ["pool"])
        if vocabulary
        else ["encoder_layer", "decoder_layer", "multi_head_attention"]
    )
    for name in (component,) if component else likely:
        for alone in (False, True):
            call = called(name, arguments, "jax" if framework == "linen" else framework, alone)
            try:
                arrays = example(name, sizes | ({"encoder_layers": 0, "segments": 0} if alone else {})) | {
                    "zeros_btd": np.zeros((3, 5, WIDTH))
                }
                inputs = {one: walking.tensor(value, framework) for one, value in arrays.items() if value is not None}
                names = {"inputs": inputs, "segments": lambda inputs: inputs["segment_bs"]}
                given = {one: eval(text, names) for one, text in call.given.items() if text != "itself"}
                values = {one: inputs.get(value) if isinstance(value, str) else value(inputs) for one, value in given.items()}
                values |= {one: None for one, argument in arguments.items() if argument.default is argument.empty and one not in values}
                return walking.started(module, framework, values)
            except Exception as error:  # whatever the user's code raises
                problems.append(words(error))
    raise ValueError(f"the module cannot be called: {problems[0]}")


def _sizes(plan: construction.Construction) -> dict[str, Any]:
    """The sizes at which the module is built: all distinct, as far as its constructor can tell them apart."""
    sizes = dict(SIZES)
    if "key_size" in plan.fields:
        sizes |= {"key_size": 5, "value_size": 7 if "value_size" in plan.fields else 5}
    if "heads" not in plan.fields and "key_size" not in plan.fields:
        sizes |= {"heads": 1, "key_value_heads": 1, "key_size": WIDTH, "value_size": WIDTH}
    if not {"source_vocabulary", "target_vocabulary"} <= plan.fields:
        sizes["source_vocabulary"] = sizes["target_vocabulary"]
    if "segments" in plan.fields:
        sizes["segments"] = 3
    if "classes" in plan.fields:  # of an encoder alone
        sizes |= {"classes": 5, "pooler": True, "decoder_layers": 0}
    return sizes


def _inferred(leaves: Sequence[Leaf], plan: construction.Construction) -> dict[str, Any]:
    """The feed-forward width, where the constructor derives it: what two kernels have beside the model width."""
    if "feed_forward_width" in plan.fields:
        return {}
    other = [max(leaf.shape) for leaf in leaves if len(leaf.shape) > 1 and sorted(leaf.shape)[-2] == WIDTH]
    seen = [size for size in other if size not in (WIDTH, 2 * WIDTH, 3 * WIDTH, 11, 17, SIZES["max_positions"]) and other.count(size) > 1]
    return {"feed_forward_width": seen[0]} if seen else {}


def _letters(sizes: Mapping[str, Any]) -> dict[str, int]:
    config = preset("semillero", **sizes)
    return {**config.sizes, "v": config.source_vocabulary, "w": config.target_vocabulary}


def _component(leaves: Sequence[Leaf], sizes: Mapping[str, Any]) -> str:
    """What the parameters are of: the largest component all of whose parts are there."""
    if not leaves:
        raise ValueError("a module without parameters must be named with --component, such as positional_encoding")
    layers = matched("encoder", leaves, _letters(sizes)).root.parts
    vocabulary = {sizes["source_vocabulary"], sizes["target_vocabulary"]}
    tables = [leaf for leaf in leaves if len(leaf.shape) == 2 and set(leaf.shape) & vocabulary]
    if layers:
        if tables:
            return _model(leaves, sizes)
        crossing = matched("decoder", leaves, _letters(sizes)).root.parts
        return "decoder" if any(_crosses(layer) for layer in crossing) else "encoder"
    attention = matched("multi_head_attention", leaves, _letters(sizes))
    for component in ("decoder_layer", "encoder_layer", "multi_head_attention", "feed_forward", "layer_norm"):
        found = matched(component, leaves, _letters(sizes))
        if not found.rest and _complete(component, found.root):
            return component
    if tables:
        return "embedding" if len(leaves) == 1 and not leaves[0].first else "logits"
    raise ValueError(
        "what the module is of a Transformer is not known from its parameters; name it with --component, one of "
        f"{', '.join(INPUTS)}; its parameters are {', '.join(f'{leaf.path} {leaf.shape}' for leaf in (attention.rest or leaves)[:8])}"
    )


def _model(leaves: Sequence[Leaf], sizes: Mapping[str, Any]) -> str:
    found = str(matched("transformer", leaves, _letters(sizes)).shown["model"])
    if not found:
        raise ValueError(
            "an encoder alone must have a pooler or a masked-language head to be compared; name a model that has one, or its layers"
        )
    return found


def _complete(component: str, root: Any) -> bool:
    if component == "decoder_layer":
        return _crosses(root)
    if component == "encoder_layer":
        return len(root.parts) == 4 and all(part.rows for part in root.parts)
    return bool(root.rows)


def _crosses(part: Any) -> bool:
    return any(child.path == "cross_attention" or _crosses(child) for child in part.parts)
