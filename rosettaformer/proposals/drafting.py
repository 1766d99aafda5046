"""Gathers what is known about a user's class: how it is built, what its parameters are, and what is open."""

from collections.abc import Mapping

from . import construction, fields, parameter_leaves
from .calling import called
from .component_inputs import OF_ITSELF, is_model
from .components import component_of, crosses
from .draft import Choice, Draft, canonical, named_rows
from .orders import choices_of
from .outer import outer_embeddings
from .parameter_matching import Match, matched
from .running import is_causal, start
from .source import Source
from .subject import Subject, letters


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
    if not component and draft.component in ("encoder_layer", "encoder") and is_causal(draft):
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
    draft.fixed = fields.fixed(draft, found.shown)
    draft.shown = fields.GUESSED
    draft.choices = [*fields.choices(draft, subject.epsilon), *choices_of(draft)]
    draft.choices += [Choice(f"argument {name}", tuple(texts), call.sides[name]) for name, texts in call.masks.items()]
    draft.undecided = {choice.name: "" for choice in draft.choices if choice.is_open}
    draft.filled = subject.masked and bool(call.filled)
    outer_embeddings(found.root, subject)
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
