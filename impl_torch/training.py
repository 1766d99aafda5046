"""A training run, step by step: the loss and its gradients, clipping, the schedule and Adam on one
batch after another.
"""

import contextlib
import copy
import functools
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks, sharding, sites
from reference_numpy import parameters as canonical
from reference_numpy.recipe import Recipe
from reference_numpy.sharding import Mesh
from reference_numpy.strategy import Strategy

from . import optimizer, schedule, weights
from .decoding import Searcher
from .programs import unpadding
from .programs.compiled import graphs
from .programs.recompute import recomputed
from .transformer import Transformer

__all__ = ["Trainer"]

Tree = Mapping[str, Any]

# held by a step: torch's deterministic mode and its generators belong to the whole process
_PROCESS = threading.RLock()


class Trainer:
    """A training run: its parameters, their moments and the number of steps done. Each step clips
    the gradients of the loss, then Adam updates.

    The loss is `Transformer.classification_loss` if the config has classes, otherwise
    `Transformer.training_loss`. Loss and gradients are one compiled graph for each shape of rows,
    whatever padding they hold (`programs.unpadding`); the update is one fused kernel.

    No graph depends on the shapes that came before it, and every kernel is deterministic: a run
    that is resumed gives the same bits. Random masks come from the device's generator, which is
    seeded for the step and then put back. Evaluation is eager.

    torch has one deterministic mode and one generator for all threads of a process: what others
    compute during a step is deterministic too, steps of several trainers wait for each other, and
    numbers that another thread draws meanwhile change the masks. On CUDA the trainer sets the
    environment's CUBLAS_WORKSPACE_CONFIG if it is not set: deterministic products need it before
    the process's first one.

    mesh: each process, as `torchrun` starts them, runs one device of it and is given whole batches
    (`programs.sharding`); there the loss is eager and padding stays in its rows. recompute: the
    activations of a layer are computed again in the backward pass, and not kept. group: the
    processes of the run.
    """

    def __init__(
        self,
        config: TransformerConfig,
        recipe: Recipe,
        parameters: Mapping[str, np.ndarray],
        seed: int = 0,
        device: torch.device | str = "cpu",
        compiled: bool = True,
        mesh: Mesh | None = None,
        recompute: bool = False,
    ) -> None:
        config.need_objective()
        if torch.device(device).type == "cuda":
            if not torch.cuda.is_available():
                raise ValueError(f"device {device} needs a CUDA device; torch sees none")
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self.config, self.recipe, self.seed, self.steps = config, recipe, seed, 0
        self._device, self._dtype = torch.device(device), canonical.training_dtype(parameters)
        self._float = getattr(torch, self._dtype)
        self.group = sharding.Group()
        self._placed: Any = None
        trees = self._made(parameters) if mesh is None else self._made_on(mesh, parameters)
        self._trees, self._tensors = trees, trees["parameters"]
        self._optimizer = optimizer.adam(
            **{part: canonical.nest(tensors) for part, tensors in trees.items()},
            steps=0,
            beta_1=recipe.beta_1,
            beta_2=recipe.beta_2,
            epsilon=recipe.epsilon,
            weight_decay=recipe.weight_decay,
        )
        self._snapshot: Searcher | None = None
        self._recompute = recompute
        if self._placed is not None:
            self._objective: Any = self._placed.objective()
        else:
            model = self._model
            self._objective = model.classification_loss if config.classes else model.training_loss
        self._least = unpadding.LEAST
        self._loss: Callable[..., Tensor] = self._objective
        self._flat_loss: Callable[..., Tensor] = unpadding.training_loss
        if compiled and mesh is None:
            # torch's own kernels draw the masks: on a CPU those of the compiler are a loop of
            # single numbers.
            options: dict[str, Any] = {"deterministic": True, "fallback_random": True}
            compiler = functools.partial(torch.compile, fullgraph=True, dynamic=False)
            self._loss = compiler(self._loss, options=options)
            self._flat_loss = compiler(self._flat_loss, options=options)

    def train_step(
        self, source: np.ndarray | None, target: np.ndarray, keep: Tree | None = None
    ) -> Tensor:
        """Makes one update from a batch of ids `b s` and `b t`; returns the loss before it, which
        stays on the device: reading it waits.

        source: None in a decoder-only model. target: the classes of the rows, `b`, if the config
        has classes.
        """
        self._check(source, target)
        total = torch.tensor(max(self._count(target), 1), device=self._device)
        self._model.train()
        self._optimizer.zero_grad(set_to_none=True)
        with _deterministic(), _seeded(self._device, self.seed, self.steps), graphs():
            parts = self._microbatches(source, target, keep, total)
            loss = torch.stack([self._backward(**part) for part in parts]).sum()
        if self._placed is not None:
            loss = self._placed.sum(loss)
            self._placed.collect(self._tensors)
        if self.recipe.clip_norm is not None:
            self._clip(self.recipe.clip_norm)
        rate = float(schedule.noam(self.steps + 1, self.config.model_width, self.recipe.warmup))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self.steps, self._snapshot = self.steps + 1, None
        return loss

    def loss(self, source: np.ndarray | None, target: np.ndarray) -> tuple[float, int]:
        """Returns, in evaluation, the sum of -log p over the labels that count, without smoothing,
        and their number.
        """
        self._model.eval()
        function, count = self._objective, self._count(target)
        if self._placed is not None:
            self._follow(source, target)
            rows, counts = self._placed.computed(range(len(target)))
            own = None if source is None else source[rows], target[rows]
            with torch.no_grad():
                value = function(*map(self._ids_of, own), total=1)
            value = self._placed.sum(value if counts else torch.zeros_like(value))
            self._placed.reshard()
            return float(value), count
        if not self.config.classes:
            function = unpadding.unpadded(function, self._least)
        with torch.inference_mode():
            return float(function(self._ids_of(source), self._ids(target), total=1)), count

    def greedy_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]:
        """Runs `Searcher.greedy_search` on the model as it is, eager as every evaluation."""
        return self._found(Searcher.greedy_search, source, strategy)

    def beam_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]:
        """Runs `Searcher.beam_search` on the model as it is, eager."""
        return self._found(Searcher.beam_search, source, strategy)

    def state(self) -> dict[str, np.ndarray]:
        """Copies the parameters and moments, as `parameters.<canonical name>`, `first_moment....`,
        `second_moment....`.
        """
        return dict(self.tensors())

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the items of `state`, one by one: on a mesh every process must ask for each, and
        none holds more than one whole.
        """
        for part, tensors in self._trees.items():
            if self._placed is None:
                arrays = weights.export(self._models[part], self.config)
                yield from ((f"{part}.{name}", array) for name, array in arrays.items())
                continue
            for name, tensor in tensors.items():
                yield f"{part}.{name}", self._placed.read(name, tensor)

    def load_state(self, state: Mapping[str, np.ndarray], steps: int) -> None:
        """Continues the run with this `state` after this number of steps; on a mesh, arrays are
        read one by one. Raises ValueError listing all that does not fit.
        """
        shapes = canonical.shapes(self.config)
        canonical.match(
            state,
            {f"{part}.{name}": shape for part in self._trees for name, shape in shapes.items()},
            self._dtype,
        )
        self._snapshot = None
        for part, tensors in self._trees.items():
            if self._placed is None:
                arrays = {name: state[f"{part}.{name}"] for name in shapes}
                weights.load(self._models[part], arrays, self.config)
                continue
            for name, tensor in tensors.items():
                self._placed.write(name, tensor, state[f"{part}.{name}"])
        for tensors in self._optimizer.state.values():
            tensors["step"].fill_(steps)
        self.steps = steps

    def _made(self, parameters: Mapping[str, np.ndarray]) -> dict[str, dict[str, Tensor]]:
        """Makes the model and its moments on one device; returns their tensors."""
        with torch.random.fork_rng(devices=[]):
            self._model = Transformer(self.config).to(self._device, self._float)
        weights.load(self._model, parameters, self.config)
        # The moments are models too, so that one pair of functions reads and writes all three.
        self._models = {
            "parameters": self._model,
            "first_moment": _zeros(self._model),
            "second_moment": _zeros(self._model),
        }
        return {part: weights.tensors(own, self.config) for part, own in self._models.items()}

    def _made_on(
        self, mesh: Mesh, parameters: Mapping[str, np.ndarray]
    ) -> dict[str, dict[str, Tensor]]:
        """Makes this process's parts of the model and its moments; returns them."""
        from .programs.sharding import Placed

        canonical.match(parameters, canonical.shapes(self.config), self._dtype)
        with torch.device("meta"):
            self._model = Transformer(self.config).to(self._float)
        given = self._model, self.config, mesh, self._device
        method = "classification_loss" if self.config.classes else ""
        self._placed = Placed(*given, whole_logits=False, method=method)
        self.group = self._placed.group
        parts = self._placed.parts()
        for name, part in parts.items():
            self._placed.write(name, part, parameters[name])
        return {
            "parameters": {name: nn.Parameter(part) for name, part in parts.items()},
            "first_moment": {name: torch.zeros_like(part) for name, part in parts.items()},
            "second_moment": {name: torch.zeros_like(part) for name, part in parts.items()},
        }

    def _found(
        self, search: Callable[..., dict[str, Tensor]], source: np.ndarray, strategy: Strategy
    ) -> dict[str, np.ndarray]:
        """Searches with a snapshot of the parameters, the last one if they have not changed
        since.
        """
        self._snapshot = self._snapshot or self._searcher()
        run = functools.partial(search, self._snapshot, strategy=strategy)
        if self._placed is None:
            found = run(self._ids(source))
        else:
            found = self._placed.found(lambda rows: run(self._ids(source[rows])), len(source))
        return {name: weights.to_numpy(tensor) for name, tensor in found.items()}

    def _searcher(self) -> Searcher:
        """Returns a searcher of the parameters; on a mesh, of the process's part of every layer."""
        if self._placed is None:
            return Searcher(self._model)
        searcher = Searcher(self._placed.part(self.config, self._tensors))
        self._placed.join(searcher.model)
        return searcher

    def _microbatches(
        self, source: np.ndarray | None, target: np.ndarray, keep: Tree | None, total: Tensor
    ) -> Iterator[dict[str, Any]]:
        """Yields the arguments of the loss for every part of the rows, on the device; total: the
        number of labels of all of them that count.
        """
        parts = self.recipe.microbatches
        if len(target) % parts:
            raise ValueError(
                f"the batch must divide into {parts} microbatches; got {len(target)} rows"
            )
        rows, given = len(target) // parts, canonical.flatten(keep or {})
        for first in range(0, len(target), rows) if rows else (0,):
            chosen, counts = slice(first, first + rows), True
            if self._placed is not None:
                self._follow(source, target, chosen)
                chosen, counts = self._placed.computed(range(first, first + rows))
                self._placed.reduces(last=first + rows == len(target))
            tokens = None if source is None else source[chosen], target[chosen]
            sides = self._sides(*tokens)
            if keep is None:
                masks: Any = canonical.nest(self._draw(*tokens, sides, chosen))
            else:
                drops = {
                    site: weights.from_numpy(drop[chosen], self._device)
                    for site, drop in given.items()
                }
                masks = canonical.nest(drops)
                masks = masks if sides is None else unpadding.unpad_keep(masks, sides)
            arguments = dict(zip(("source", "target"), map(self._ids_of, tokens), strict=True))
            # Of rows of another process the loss is 0, and so are its gradients.
            own_total = total if counts else torch.full_like(total, math.inf, dtype=self._float)
            yield arguments | {"total": own_total, "keep": masks or None, "sides": sides}

    def _sides(self, source: np.ndarray | None, target: np.ndarray) -> unpadding.Sides | None:
        """Finds the flat tokens on the host, which then does not wait for the device."""
        if self._placed is not None:
            return None
        tokens = (
            None if x is None else weights.from_numpy(np.asarray(x)) for x in (source, target)
        )
        sides = unpadding.find(self._objective, self._least, *tokens)
        return None if sides is None else sides.to(self._device)

    def _draw(
        self,
        source: np.ndarray | None,
        target: np.ndarray,
        sides: unpadding.Sides | None,
        chosen: slice,
    ) -> dict[str, Tensor]:
        """Draws keep masks of all sites out of one run of random words, 16 bits for an entry:
        several times faster than a draw at each site.

        The attention weights are left to torch's kernel, which never holds them; on a mesh they
        have masks as the other sites, and the masks of a row are the same on every mesh.
        """
        lengths = (
            0 if source is None else source.shape[1],
            0 if self.config.classes else target.shape[1] - 1,
        )
        if self._placed is not None:
            return self._placed.draw(self.config, chosen, lengths, self.seed, self.steps)
        shapes = sites.shapes(self.config, len(target), *lengths)
        shapes = {
            site: shape for site, shape in shapes.items() if not site.endswith("weights_dropout")
        }
        source_tokens, target_tokens = sides or (None, None)
        stacks = {"encoder": source_tokens, "decoder": target_tokens}
        flat = {
            site: tokens
            for site in shapes
            if (tokens := stacks.get(site.partition(".")[0])) is not None
        }
        shapes |= {site: (1, tokens.number, *shapes[site][2:]) for site, tokens in flat.items()}
        sizes = [math.prod(shape) for shape in shapes.values()]
        words = torch.empty(-(-sum(sizes) // 4), dtype=torch.int64, device=self._device)
        words = words.random_(-(2**63), None).view(torch.int16)[: sum(sizes)]
        masks = {}
        for (site, shape), word in zip(shapes.items(), words.split(sizes), strict=True):
            mask = (word >= round(sites.rate(self.config, site) * 2**16) - 2**15).view(shape)
            any_number = site in flat and flat[site].index_n is not None
            masks[site] = unpadding.of_any_number(mask, 1) if any_number else mask
        return masks

    def _backward(
        self,
        source: Tensor | None,
        target: Tensor,
        total: Tensor,
        keep: Tree | None,
        sides: unpadding.Sides | None,
    ) -> Tensor:
        given = source, target, self.recipe.smoothing, total, keep
        with recomputed(self._model) if self._recompute else contextlib.nullcontext():
            if sides is None:
                loss = self._loss(*given)
            else:
                loss = self._flat_loss(self._model, sides, *given)
        loss.backward()
        return loss.detach()

    def _clip(self, limit: float) -> None:
        gradients: Any = {name: tensor.grad for name, tensor in self._tensors.items()}
        if self._placed is None:
            clipped = canonical.flatten(
                optimizer.clip_global_norm(canonical.nest(gradients), limit)
            )
        else:
            clipped = self._placed.clipped(gradients, limit)
        for name, gradient in clipped.items():
            self._tensors[name].grad = gradient

    def _ids(self, token: np.ndarray) -> Tensor:
        tensor = weights.from_numpy(np.asarray(token), self._device)
        return tensor if tensor.is_floating_point() else tensor.long()

    def _ids_of(self, token: np.ndarray | None) -> Tensor | None:
        return None if token is None else self._ids(token)

    def _check(self, source: np.ndarray | None, target: np.ndarray) -> None:
        """Raises ValueError on a batch that does not fit, while it is on the host: a compiled graph
        has no values to look at.
        """
        config = self.config
        checks.check_source_given(config.encoder_layers, source)
        if source is not None:
            checks.check_same_batch(source=source.shape, target=target.shape)
            checks.check_tokens(
                "token", source.shape, str(source.dtype), config.source_vocabulary, *_bounds(source)
            )
            checks.check_length(source.shape[1], config.max_positions)
        if config.classes:
            checks.check_classes(target.shape, str(target.dtype))
            checks.check_held(config.classes, *(_bounds(target) or (None, None)), name="label")
        else:
            checks.check_target(target.shape, str(target.dtype))
            checks.check_tokens(
                "token", target.shape, str(target.dtype), config.target_vocabulary, *_bounds(target)
            )
            checks.check_length(target.shape[1] - 1, config.max_positions)

    def _follow(
        self, source: np.ndarray | None, target: np.ndarray, rows: slice = slice(None)
    ) -> None:
        """Lets the processes of a mesh read their rows as parts of these; they must be some."""
        if not len(target):
            raise ValueError("a batch on a mesh must have rows; got none")
        read = None if self.config.classes else target[rows, :-1]
        self._placed.follow(None if source is None else source[rows], read)

    def _count(self, target: np.ndarray) -> int:
        """Counts the labels that count: every class does."""
        if self.config.classes:
            return len(target)
        label_bt = target[:, 1:]
        return (
            label_bt.size
            if self.config.padding_id is None
            else int((label_bt != self.config.padding_id).sum())
        )


def _bounds(token: np.ndarray) -> tuple[int, ...]:
    """Returns the lowest and the highest id, if there are ids."""
    return (int(token.min()), int(token.max())) if token.dtype.kind in "iu" and token.size else ()


def _zeros(model: Transformer) -> Transformer:
    zeros = copy.deepcopy(model).requires_grad_(False)
    for tensor in zeros.parameters():
        tensor.zero_()
    return zeros


@contextlib.contextmanager
def _seeded(device: torch.device, seed: int, steps: int) -> Iterator[None]:
    """Sets the device's generator to a place that follows from seed and steps; afterwards puts it
    back.
    """
    devices = [device.index or torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        generator = (
            torch.cuda.default_generators[devices[0]] if devices else torch.default_generator
        )
        generator.manual_seed(
            int(np.random.SeedSequence([seed, steps]).generate_state(1, np.uint64)[0])
        )
        yield


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Fixes the order of every sum, such as in the gradients of embeddings and attention; one step
    at a time.
    """
    flags: Any = torch.utils.deterministic
    with _PROCESS:
        before = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        fill = flags.fill_uninitialized_memory
        flags.fill_uninitialized_memory = False  # nothing here reads such memory
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            flags.fill_uninitialized_memory = fill
