"""Modules and functions as one compiled graph."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import torch

from .. import framework, precision
from . import unpadding

__all__ = ["compiled", "compiled_step", "graphs"]

Given = ParamSpec("Given")
Result = TypeVar("Result")
GRAPHS = 64  # that torch may keep of one function; its default is eight


def compiled(
    module: Callable[Given, Result], least: int = unpadding.LEAST
) -> Callable[Given, Result]:
    """`torch.compile` of the whole, without graph breaks; its arguments and errors stay the same.

    Token ids are checked before the graph runs, if the module, or a method's own module, has
    `check_ids`: inside it there are no values to look at. The check is given the arguments whose
    names it knows. What `unpadding.unpadded` takes leaves out padding; least: see there. The first
    call compiles, and so does the first that differs in a length; from then on one graph serves
    every length. torch keeps `torch.compiler.config.recompile_limit` graphs for all modules of a
    class together, and raises when there are more.
    """
    graph = torch.compile(module, fullgraph=True)
    model: Any = getattr(module, "__self__", module)
    if (driver := unpadding.driver(module)) is not None:
        model, flat = driver[0], torch.compile(driver[1], fullgraph=True)
    check_ids = getattr(model, "check_ids", None)
    if check_ids is not None:
        call = inspect.signature(getattr(module, "forward", module))
        known = inspect.signature(check_ids).parameters

    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        sides = None
        if check_ids is not None:
            given = call.bind(*args, **kwargs).arguments
            check_ids(**{name: value for name, value in given.items() if name in known})
            sides = unpadding.find(module, least, **given)
        try:
            if sides is None:
                return graph(*args, **kwargs)
            keep = unpadding.unpad_keep(given.get("keep"), sides)
            return flat(model, sides, **given | {"keep": keep})
        except framework.untraceable():
            # The tracer replaces every exception by its own; the module itself says what is wrong.
            module(*args, **kwargs)
            raise

    return run


def compiled_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a step of decoding, `step(model, target, cache, *args)`, into a program that reads a
    single token, but not the first.

    One program serves every length and the weights of every model of a structure, but one number of
    rows (`programs.program`). Arguments that are no tensors are its constants. Numbers that are 0
    or 1 are never its variables: the first token of a target is read without it, and so is every
    token if the source is a single one or `torch.autocast` is on.
    """
    programs: dict[Any, Any] = {}
    # the cache's layers, which a search does not change, the program and its fixed inputs
    searched: list[Any] = [None, None, []]

    def run(model: Any, target: torch.Tensor, cache: Mapping[str, Any], *args: Any) -> Any:
        source_mask_bs = cache["source_mask_bs"]
        short = cache["read"] < 1 or (source_mask_bs is not None and source_mask_bs.shape[1] < 2)
        other = target.shape[1] > 1 or target.is_floating_point() or precision.autocasts(target)
        if short or other:
            return step(model, target, cache, *args)
        if searched[0] is not cache["layers"]:
            from .program import StepProgram, fixed, signature

            kept = fixed(model, cache)
            if (key := (id(model), signature(target, cache, args, kept))) not in programs:
                programs[key] = model, StepProgram(step, model, target, cache, args)
            searched[:] = cache["layers"], programs[key][1], kept
        return searched[1](target, cache, args, searched[2])

    return run


@contextlib.contextmanager
def graphs() -> Iterator[None]:
    """Settings of compiled losses: room for many graphs; lengths equal by chance may part."""
    limits: Any = torch.compiler.config
    room = limits.patch(recompile_limit=GRAPHS, accumulated_recompile_limit=4 * GRAPHS)
    with room, framework.of_unequal_sizes():
        yield
