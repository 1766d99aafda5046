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
GRAPHS = 64  # graphs that torch may keep per function; its default is eight


def compiled(
    module: Callable[Given, Result], least: int = unpadding.LEAST
) -> Callable[Given, Result]:
    """`torch.compile` of the whole, without graph breaks; arguments and errors stay the same.

    If the module, or the module of a method, has `check_ids`, it checks token ids before the graph
    runs, where values exist; it gets the arguments whose names it takes. Functions that
    `unpadding.unpadded` accepts skip padding; least: see there. The first call compiles, and so
    does the first call with another length; after that, one graph serves every length. torch keeps
    `torch.compiler.config.recompile_limit` graphs for all modules of a class together, and raises
    beyond that.
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
            # The tracer replaces exceptions; calling the module raises the original one.
            module(*args, **kwargs)
            raise

    return run


def compiled_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a decoding step, `step(model, target, cache, *args)`, into a single-token program.

    One program serves every length and all models of one structure, but one number of rows
    (`programs.program`). Arguments that are not tensors are constants. Sizes of 0 or 1 cannot be
    variables: the program does not run for the first token of a target, a source of one token, or
    under `torch.autocast`.
    """
    programs: dict[Any, Any] = {}
    # layers of the cache, which a search keeps; the program; its fixed inputs
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
    """Settings for compiled losses: room for many graphs; equal sizes stay independent."""
    limits: Any = torch.compiler.config
    room = limits.patch(recompile_limit=GRAPHS, accumulated_recompile_limit=4 * GRAPHS)
    with room, framework.of_unequal_sizes():
        yield
