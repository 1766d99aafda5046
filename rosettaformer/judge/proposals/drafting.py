"""Collects what is known about a user's class: construction, parameters, embeddings, open choices."""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import parameters, preset

from ...common.modules import face
from ...common.modules.attributes import at
from ..expectation.components import model_of
from . import config_fields, construction
from .calling import called
from .components import OF_ITSELF, component_of, is_model, letters
from .draft import Choice, Draft
from .matching import Matching, Row
from .models import matched
from .running import is_causal, start
from .user_code import FAILURES, Source, limited
from .user_module import UserModule
from .vocabulary import within


def drafted(source: Source, component: str, wanted: str, given: Mapping[str, str]) -> Draft:
    """Returns what is known about the class, and the masks and dtypes it runs with.

    Raises ValueError if it cannot be built or matches no component.
    """
    plan = construction.plan(source.make, source.name, source.module, given)
    user = UserModule(source, plan, component, wanted)
    draft = _draft_of(component or _component(user), user)
    if draft.failure and draft.component == "decoder_layer" and len(draft.call.masks) == 1:
        crossed = _draft_of(draft.component, user, crossed=True)
        draft = draft if crossed.failure else crossed
    if draft.failure and not is_model(draft.component):
        of_rows = _draft_of(draft.component, user, by_row=True)
        draft = draft if of_rows.failure else of_rows
    if draft.gives_vectors:
        draft = _draft_of("token_encoder", user) if draft.decoder_only and not component else draft
        if draft.gives_vectors or is_causal(draft):
            raise ValueError(f"{source.name} returns its last layer's vectors, which are not compared. Name a model with logits or a layer")
    rotates = source.rotates and not draft.match.shown.get("norm_offset", True)  # its mask argument is then the causal mask
    if not component and draft.component in ("encoder_layer", "encoder") and (rotates or is_causal(draft)):
        draft = _draft_of(draft.component.replace("encoder", "decoder"), user)
    if draft.component in OF_ITSELF.values() and is_causal(draft):
        draft.call.given["if"] = '"causal"'
    return draft


def _component(user: UserModule) -> str:
    """Returns the module's component, from its parameters and its arguments."""
    found = component_of(user.source.name, user.leaves, user.sizes)
    own = OF_ITSELF.get(found)
    return own if own and "itself" in called(found, user.arguments, user.adapter).given.values() else found


def _draft_of(component: str, user: UserModule, crossed: bool = False, by_row: bool = False) -> Draft:
    """Returns what is known about the module as that component. crossed, by_row: see `called`."""
    source, plan, sizes = user.source, user.plan, user.sizes
    work = matched(component, user.leaves, letters(sizes))
    if user.adapter != "torch":  # biases cannot be removed
        work.left += work.unpaired
        work.unpaired = []
    if component == "transformer" and work.root.crosses and not work.shown["encoder_layers"]:
        raise ValueError(f"{source.name} attends to an encoder's output but has no encoder. Choose the whole model, or one of its layers")
    layered = component in ("decoder_layer", "decoder", "token_decoder", "transformer")
    decoder_only = layered and not (work.shown["encoder_layers"] if component == "transformer" else work.root.crosses)
    call = called(component, user.arguments, user.adapter, decoder_only, crossed, by_row)
    if "itself" in call.given.values():
        raise ValueError(
            f"{source.name} only attends to its own input, but the cases of {component} have a separate memory. "
            f"Omit --component, or pass --component {OF_ITSELF[component]}"
        )
    draft = Draft(source, component, user.framework, plan, sizes, work, call, decoder_only)
    draft.fixed = config_fields.fixed(draft)
    draft.construction = plan.replaced(_sizes_of_text(draft))
    draft.choices = [*config_fields.choices(draft, user.epsilon), *_choices_of(work)]
    draft.choices += [Choice(f"argument {name}", tuple(texts), call.sides[name]) for name, texts in call.masks.items()]
    draft.undecided = {choice.name: "" for choice in draft.choices if len(choice.values) > 1}
    _bind_embeddings(work, user)
    _require_names(draft)
    if not draft.missing and not work.left:  # arguments without a counterpart get None
        start(draft, user.masked)
    return draft


def _sizes_of_text(draft: Draft) -> dict[str, str]:
    """Returns sizes for which the constructor needs another expression than the field."""
    found, sizes = {}, draft.sizes
    if draft.decoder_only or draft.component in ("decoder", "token_decoder"):
        found = {"encoder_layers": "config.decoder_layers", "source_vocabulary": "config.target_vocabulary"}
    if draft.match.shown.get("rows") != sizes["max_positions"]:  # the length of a buffer, or part of a table's length
        found["max_positions"] = str(sizes["max_positions"])
    if sizes["feed_forward_width"] != draft.construction.width:
        found["feed_forward_width"] = str(draft.construction.width)
    return found


def _require_names(draft: Draft) -> None:
    """Records missing parameters. Raises ValueError if most are, or one has two tensors."""
    names, wanted = [name for name, _ in draft.match.root.named()], _canonical(draft)
    draft.missing = [f"{name} ({axes})" for name, axes in wanted.items() if name not in names]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"{draft.source.name} does not match {draft.component}: several of its parameters match {twice[0]}")
    if 2 * len(draft.missing) > len(wanted):
        raise ValueError(
            f"{draft.source.name} does not match {draft.component}: no parameter of it matches {', '.join(draft.missing[:4])}"
            + f" and {len(draft.missing) - 4} more" * (len(draft.missing) > 4)
            + ". Choose one of its layers, or a class that contains it"
        )


def _canonical(draft: Draft) -> Mapping[str, str]:
    """Returns the axes of the component's parameters by canonical name; empty if it has none."""
    found = draft.config(draft.selection)
    learned = {} if found.get("positions", "learned") == "learned" else {"max_positions": 0}
    config = preset("nn_transformer", **{**draft.sizes, **learned, **found})
    try:
        return parameters.axes(config, model_of(draft.component))
    except ValueError:
        return {}


def _choices_of(work: Matching) -> list[Choice]:
    """Returns the open choices: memory layouts, and names known only by their order."""
    found: dict[str, Choice] = {}
    for part in work.root.within():
        shows = {"multi_head_attention": "attention", "feed_forward": "feed_forward"}.get(part.component, "norms")
        layouts = tuple(range(max((len(row.axes) for row in part.rows), default=1)))
        roles = [name.partition(".")[0] for name in part.ordered if name.endswith("kernel")]
        fused = [row.role for row in part.rows if "/3" in row.axes[0] and row.name.endswith("kernel")]
        slots = [name for name in part.ordered if name.endswith("_norm")]
        for what, values, shown_in in (
            ("axes", layouts, shows), ("order", _orders(roles or fused), shows), ("order of norms", _orders(slots), "norms"),
        ):  # fmt: skip
            if len(values) > 1:
                name = f"{what} of {part.component}"
                found.setdefault(name, Choice(name, values, shown_in))
    return list(found.values())


def _orders(names: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Returns every permutation of the names, as pairs of a name and the one in its place."""
    return tuple(tuple(zip(names, order, strict=True)) for order in itertools.permutations(names))


def _bind_embeddings(work: Matching, user: UserModule) -> None:
    """Maps each embedding to the innermost module that scales its table's rows."""
    if user.framework == "torch":
        user.module.eval()
    for child in work.root.parts:
        if child.component != "embedding" or not child.native:
            continue
        (row,) = child.rows
        whole = f"{child.native}.{row.native}" if row.native else child.native
        around = [child.native.rsplit(".", steps)[0] for steps in range(1, child.native.count(".") + 1)]
        if native := next((one for one in around if _multiplies(whole, one, user)), ""):
            child.native, child.rows = native, [Row(row.name, within(whole, native), row.axes)]


def _multiplies(table: str, outer: str, user: UserModule) -> bool:
    """Whether the outer module returns the table's rows times a constant other than 1."""
    with contextlib.suppress(*FAILURES), limited(f"a call of {outer}"):
        if user.framework == "linen":  # its submodules hold no parameters
            given, gave = user.started.calls[outer]
            values = user.started.variables[table]
        else:
            given = np.array([[1, 2, 3], [4, 3, 2]])
            gave, values = at(user.module, outer)(face(user.framework).tensor(given)), at(user.module, table)
        rows, found = _array(values, user.framework)[np.asarray(given)], _array(gave, user.framework)
        constant = float((found * rows).sum() / (rows * rows).sum())
        return np.allclose(found, constant * rows, rtol=1e-4, atol=1e-6) and abs(constant - 1) > 1e-3
    return False


def _array(value: Any, framework: str) -> np.ndarray:
    if framework == "torch":
        return value.detach().cpu().numpy()
    return np.asarray(value.get_value() if hasattr(value, "get_value") else value)
