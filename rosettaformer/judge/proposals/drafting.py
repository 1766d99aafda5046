"""Gathers what is known about a user's class: how it is built, what its parameters are, where an embedding ends, and what is open."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...common.modules import face
from ...common.modules.attributes import at
from . import construction, parameter_leaves, port_fields
from .calling import called
from .component_inputs import OF_ITSELF, is_model
from .components import component_of, crosses
from .draft import Choice, Draft, canonical, named_rows
from .failures import FAILURES, limited
from .model_parts import Match, matched
from .parts import Part, Row
from .running import is_causal, start
from .source import Source
from .user_module import Subject, letters
from .vocabulary import within


def drafted(source: Source, component: str, wanted: str, given: Mapping[str, str]) -> Draft:
    """Returns what is known about the class, and with which masks and dtypes it runs if all of its parameters and arguments are known.

    Raises ValueError if it cannot be built or is not a known component.
    """
    plan = construction.plan(source.make, source.name, source.module, given)
    found = Subject(source, plan, component, wanted)
    draft = _draft_of(component or _component(found), found)
    if draft.failure and draft.component == "decoder_layer" and len(draft.call.masks) == 1:
        crossed = _draft_of(draft.component, found, crossed=True)
        draft = draft if crossed.failure else crossed
    if draft.failure and not is_model(draft.component):
        of_rows = _draft_of(draft.component, found, by_row=True)
        draft = draft if of_rows.failure else of_rows
    if draft.gives_vectors:
        draft = _draft_of("token_encoder", found) if draft.decoder_only and not component else draft
        if draft.gives_vectors or is_causal(draft):
            raise ValueError(
                f"{source.name} gives its last layer's vectors, for which no case asks; name a model with logits, or its layers"
            )
    rotates = source.rotates and not draft.match.shown.get("norm_offset", True)  # a mask is then given to hide what is later
    if not component and draft.component in ("encoder_layer", "encoder") and (rotates or is_causal(draft)):
        draft = _draft_of(draft.component.replace("encoder", "decoder"), found)
    if draft.component in OF_ITSELF.values() and is_causal(draft):
        draft.call.given["if"] = '"causal"'
    return draft


def _component(subject: Subject) -> str:
    """Returns the component of the module, by its parameters, and by its arguments if these show that it attends only to its own input."""
    found = component_of(subject.leaves, subject.sizes)
    own = OF_ITSELF.get(found)
    return own if own and "itself" in called(found, parameter_leaves.signature(subject.module), subject.adapter).given.values() else found


def _draft_of(component: str, subject: Subject, crossed: bool = False, by_row: bool = False) -> Draft:
    """Returns what is known about the module as that component. crossed, by_row: see `called`."""
    source, plan, module, sizes = subject.source, subject.plan, subject.module, subject.sizes
    found = matched(component, list(subject.leaves), letters(sizes))
    if subject.adapter != "torch":  # if a bias cannot be removed
        found.rest += found.unpaired
        found.unpaired = []
    if is_model(component):
        _require_model(component, found, source.name)
    decoder_only = component == "transformer" and not found.shown["encoder_layers"]
    decoder_only = decoder_only or (component in ("decoder_layer", "decoder", "token_decoder") and not crosses(found.root))
    call = called(component, parameter_leaves.signature(module), subject.adapter, decoder_only, crossed, by_row)
    if "itself" in call.given.values():
        raise ValueError(
            f"{source.name} attends to its own input alone, and the cases of {component} have queries and memory that differ; "
            f"leave --component out, or name {OF_ITSELF[component]}"
        )
    if decoder_only or component in ("decoder", "token_decoder"):
        plan = plan.replaced(encoder_layers="config.decoder_layers", source_vocabulary="config.target_vocabulary")
    draft = Draft(source, component, subject.framework, plan, sizes, found, call, decoder_only, found.shown.get("rows", 0))
    draft.fixed = port_fields.fixed(draft, found.shown)
    draft.shown = port_fields.GUESSED
    draft.choices = [*port_fields.choices(draft, subject.epsilon), *_choices_of(draft)]
    draft.choices += [Choice(f"argument {name}", tuple(texts), call.sides[name]) for name, texts in call.masks.items()]
    draft.undecided = {choice.name: "" for choice in draft.choices if choice.is_open}
    draft.filled = subject.masked and bool(call.filled)
    _outer_embeddings(found.root, subject)
    _require_names(draft)
    if not draft.missing and not found.rest:  # an argument without a counterpart is given None
        start(draft)
    return draft


def _require_model(component: str, found: Match, name: str) -> None:
    """Raises ValueError unless the parameters belong to that model."""
    if "encoder_layers" not in found.shown:
        raise ValueError(f"{name} has layers that attend to an encoder's output, and no encoder; name the whole model, or its layers")
    if component != found.shown["model"]:
        raise ValueError(f"--component must be what the parameters of {name} are, {found.shown['model']}; got {component}")


def _require_names(draft: Draft) -> None:
    """Records which canonical parameters have no tensor. Raises ValueError if two have the same place, or if most have none."""
    names, wanted = list(named_rows(draft.match.root)), canonical(draft)
    draft.missing = [f"{name} ({axes})" for name, axes in wanted.items() if name not in names]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"{draft.source.name} cannot be proposed as {draft.component}: several of its parameters would be {twice[0]}")
    if 2 * len(draft.missing) > len(wanted):
        raise ValueError(
            f"{draft.source.name} cannot be proposed as {draft.component}: it has no {', '.join(draft.missing[:4])}"
            + f" and {len(draft.missing) - 4} more" * (len(draft.missing) > 4)
            + ", as far as its parameters show; name its layers, or a class that contains it"
        )


def _choices_of(draft: Draft) -> list[Choice]:
    """Returns what is open about names and axes: layouts, and what only the order of declaration told apart."""
    found: dict[str, Choice] = {}
    for part in _parts(draft.match.root):
        shows = {"multi_head_attention": "attention", "feed_forward": "feed_forward"}.get(part.component, "norms")
        layouts = tuple(range(max((len(row.axes) for row in part.rows), default=1)))
        roles = [name.partition(".")[0] for name in part.ordered if name.endswith("kernel")]
        fused = [row.name.partition(".")[0] for row in part.rows if "/3" in row.axes[0] and row.name.endswith("kernel")]
        slots = [name for name in part.ordered if name.endswith("_norm")]
        for what, values, shown_in in (
            ("axes", layouts, shows), ("order", _orders(roles or fused), shows), ("order of norms", _orders(slots), "norms"),
        ):  # fmt: skip
            if len(values) > 1:
                name = f"{what} of {part.component}"
                found.setdefault(name, Choice(name, values, shown_in))
    return list(found.values())


def _orders(names: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Returns every order of the names, each name with the one in its place."""
    return tuple(tuple(zip(names, order, strict=True)) for order in itertools.permutations(names))


def _parts(part: Part) -> Iterator[Part]:
    yield part
    for child in part.parts:
        yield from _parts(child)


def _outer_embeddings(part: Part, subject: Subject) -> None:
    """Binds each embedding to the innermost module around its table that returns the rows times a constant other than 1, if any."""
    if subject.framework == "torch":
        subject.module.eval()
    for child in part.parts:
        if child.component != "embedding" or not child.native:
            continue
        (row,) = child.rows
        whole = f"{child.native}.{row.native}" if row.native else child.native
        for native in _around(child.native):
            if _multiplies(whole, native, subject):
                child.native, child.rows = native, [Row(row.name, within(whole, native), row.axes)]
                break


def _around(native: str) -> Iterator[str]:
    while "." in native:
        native = native.rpartition(".")[0]
        yield native


def _multiplies(table: str, outer: str, subject: Subject) -> bool:
    """Whether the outer module returns the rows of the table times a constant that is not 1."""
    with contextlib.suppress(*FAILURES), limited(f"a call of {outer}"):
        if subject.framework == "linen":  # its parts have no parameters of their own
            given, gave = subject.started.calls[outer]
            values = subject.started.variables[table]
        else:
            given = np.array([[1, 2, 3], [4, 3, 2]])
            gave, values = at(subject.module, outer)(face(subject.framework).tensor(given)), at(subject.module, table)
        rows, found = _array(values, subject.framework)[np.asarray(given)], _array(gave, subject.framework)
        constant = float((found * rows).sum() / (rows * rows).sum())
        return np.allclose(found, constant * rows, rtol=1e-4, atol=1e-6) and abs(constant - 1) > 1e-3
    return False


def _array(value: Any, framework: str) -> np.ndarray:
    if framework == "torch":
        return value.detach().cpu().numpy()
    return np.asarray(value.get_value() if hasattr(value, "get_value") else value)
