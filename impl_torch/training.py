"""A training run: loss and gradients, clipping, the schedule and Adam, batch after batch."""

import contextlib
import functools
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks, sites
from reference_numpy import parameters as canonical
from reference_numpy.recipe import Recipe
from reference_numpy.sharding import Mesh
from reference_numpy.strategy import Strategy

from . import dropout, optimizer, schedule, weights
from .decoding import Searcher
from .inputs import real_tokens
from .precision import dtype_name
from .programs import lengths, unpadding
from .programs.compiled import graphs
from .programs.parts import Held, draw
from .programs.recompute import recomputed
from .transformer import Transformer
from .values import Text

if TYPE_CHECKING:
    from .programs.sharding import Placed

__all__ = ["Trainer"]

Masks = Mapping[str, "np.ndarray | Masks"]  # keep masks by site, nested
# source, target or classes, smoothing, total, keep
Given = tuple[Tensor | None, Tensor, float, Tensor, dropout.Keep | None]

ALONE = Mesh(replicate=True)  # one device, with everything
# held during a step: torch's deterministic mode and generators are global to the process
_PROCESS = threading.RLock()


class Batch(NamedTuple):
    """Rows on the host. source: ids; None in a decoder-only model. target: ids, or classes."""

    source: Tensor | None
    target: Tensor

    @classmethod
    def of(cls, source: np.ndarray | None, target: np.ndarray) -> "Batch":
        """Copies arrays into a batch."""
        given = None if source is None else weights.from_numpy(source)
        return cls(given, weights.from_numpy(target))

    def each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Applies `change` to both sides."""
        return Batch(None if self.source is None else change(self.source), change(self.target))


class Trainer:
    """Parameters and moments of one run, and the number of steps done.

    The loss is `Transformer.classification_loss` if the config has classes, otherwise
    `Transformer.training_loss`. Loss and gradients are one compiled graph per shape of rows,
    whatever their padding (`programs.unpadding`); the update is one fused kernel.

    No graph depends on earlier shapes, and every kernel is deterministic, so a resumed run gives
    the same bits. Random masks come from the device's generator, seeded for the step and then
    restored. Evaluation is eager.

    torch has one deterministic mode and one generator per process: other computations during a step
    become deterministic too, steps of several trainers wait for each other, and random numbers
    drawn by another thread meanwhile change the masks. On CUDA the trainer sets the environment
    variable CUBLAS_WORKSPACE_CONFIG if it is unset: deterministic products need it before the first
    product of the process.

    mesh: each process, started as by `torchrun`, runs one device and gets whole batches
    (`programs.sharding`); the loss is then eager and padding is kept. recompute: recomputes a
    layer's activations in the backward pass instead of storing them. group: the processes of the
    run.
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
        self._weighted = weighted = recipe.router_weights(config, mesh)
        if weighted and recompute and compiled:
            raise ValueError("router losses with recompute need compiled=False; got compiled=True")
        if torch.device(device).type == "cuda":
            if not torch.cuda.is_available():
                raise ValueError(f"device {device} needs a CUDA device; torch sees none")
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self.config, self.recipe, self.seed, self.steps = config, recipe, seed, 0
        self._device, self._dtype = torch.device(device), canonical.training_dtype(parameters)
        self._float: torch.dtype = getattr(torch, self._dtype)
        canonical.match(parameters, canonical.shapes(config), self._dtype)
        with torch.device("meta"):
            self._model = Transformer(config).to(self._float)
        self._placed: Placed | None = None
        self._objective: Callable[..., Tensor]
        model = self._model
        if mesh is None:
            self._held = Held(config, ALONE)
            own = weights.tensors(model.to_empty(device=self._device), config)
            self._objective = model.classification_loss if config.classes else model.training_loss
        else:
            from .programs import sharding

            method = "classification_loss" if config.classes else ""
            self._placed = self._held = sharding.Placed(
                self._model, config, mesh, self._device, whole_logits=False, method=method
            )
            loss = functools.partial(sharding.training_loss, model)
            self._objective = self._placed.summed(model.classification_loss if method else loss)
            own = {name: nn.Parameter(part) for name, part in self._placed.parts().items()}
        for name, tensor in own.items():
            self._held.write(name, tensor, parameters[name])
        self.group, self._tensors = self._held.group, own
        self._trees = {"parameters": own}
        for moment in ("first_moment", "second_moment"):
            self._trees[moment] = {name: torch.zeros_like(x) for name, x in own.items()}
        self._optimizer = optimizer.adam(
            **self._trees,
            steps=0,
            betas=(recipe.beta_1, recipe.beta_2),
            epsilon=recipe.epsilon,
            weight_decay=recipe.weight_decay,
        )
        self._snapshot: Searcher | None = None
        self._recompute, self._least = recompute, unpadding.LEAST
        self._loss: Callable[..., Tensor] = self._objective
        if weighted:
            self._loss = functools.partial(self._objective, **weighted)
        self._flat_loss: Callable[..., Tensor] = unpadding.training_loss
        if compiled and mesh is None:
            # torch's kernels draw the masks, since the compiler's CPU kernel draws them one by one.
            options = {"deterministic": True, "fallback_random": True}
            graph = functools.partial(torch.compile, fullgraph=True, dynamic=False, options=options)
            self._loss, self._flat_loss = graph(self._loss), graph(self._flat_loss)

    def train_step(
        self, source: np.ndarray | None, target: np.ndarray, keep: Masks | None = None
    ) -> Tensor:
        """Makes one update from a batch of ids `b s` and `b t`; returns the loss before the update.

        The loss stays on the device; reading it waits for the step. source: None in a decoder-only
        model. target: if the config has classes, those of the rows, `b`.
        """
        batch = Batch.of(source, target)
        self._check(batch)
        total = torch.tensor(max(self._count(batch), 1), device=self._device)
        self._model.train()
        self._optimizer.zero_grad(set_to_none=True)
        with _deterministic(), _seeded(self._device, self.seed, self.steps), graphs():
            parts = self._microbatches(batch, keep, total)
            loss = torch.stack([self._backward(sides, given) for sides, given in parts]).sum()
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
        """Returns the sum of -log p over counted labels, without smoothing, and their number."""
        self._model.eval()
        batch, function = Batch.of(source, target), self._objective
        count = self._count(batch)
        if self._placed is not None:
            self._follow(batch)
            rows, counts = self._placed.computed(range(len(target)))
            own = batch.each(lambda x: self._moved(x[rows]))
            with torch.no_grad():
                value = function(own.source, own.target, total=1)
            value = self._placed.sum(value if counts else torch.zeros_like(value))
            self._placed.reshard()
            return float(value), count
        if not self.config.classes:
            function = unpadding.unpadded(function, self._least)
        batch = batch.each(self._moved)
        with torch.inference_mode():
            return float(function(batch.source, batch.target, total=1)), count

    def greedy_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]:
        """Runs `Searcher.greedy_search` on the current model, eagerly like all evaluation."""
        return self._found(Searcher.greedy_search, source, strategy)

    def beam_search(self, source: np.ndarray, strategy: Strategy) -> dict[str, np.ndarray]:
        """Runs `Searcher.beam_search` on the current model, eagerly."""
        return self._found(Searcher.beam_search, source, strategy)

    def state(self) -> dict[str, np.ndarray]:
        """Copies the tensors `parameters.NAME`, `first_moment.NAME` and `second_moment.NAME`."""
        return dict(self.tensors())

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the items of `state` one by one; on a mesh every process must iterate."""
        for part, tensors in self._trees.items():
            for name, tensor in tensors.items():
                yield f"{part}.{name}", self._held.read(name, tensor)

    def load_state(self, state: Mapping[str, np.ndarray], steps: int) -> None:
        """Resumes the run from this `state` after `steps` steps; ValueError lists every problem.

        On a mesh, arrays are read one by one.
        """
        shapes = canonical.shapes(self.config).items()
        known = {f"{part}.{name}": shape for part in self._trees for name, shape in shapes}
        canonical.match(state, known, self._dtype)
        for part, tensors in self._trees.items():
            for name, tensor in tensors.items():
                self._held.write(name, tensor, state[f"{part}.{name}"])
        for held in self._optimizer.state.values():
            held["step"].fill_(steps)
        self.steps, self._snapshot = steps, None

    def _found(
        self, search: Callable[..., dict[str, Tensor]], source: np.ndarray, strategy: Strategy
    ) -> dict[str, np.ndarray]:
        """Searches with a snapshot of the parameters, reused until they change; on a mesh, of this
        process's part of every layer.
        """
        token, placed = weights.from_numpy(source), self._placed
        if self._snapshot is None:
            part = self._model if placed is None else placed.part(self._tensors)
            self._snapshot = Searcher(part)
            if placed is not None:
                placed.join(self._snapshot.model)
        snapshot = self._snapshot

        def run(rows: slice) -> dict[str, Tensor]:
            return search(snapshot, self._moved(token[rows]), strategy)

        found = run(slice(None)) if placed is None else placed.found(run, len(token))
        return {name: weights.to_numpy(tensor) for name, tensor in found.items()}

    def _microbatches(
        self, batch: Batch, keep: Masks | None, total: Tensor
    ) -> Iterator[tuple[unpadding.Sides | None, Given]]:
        """Yields flat tokens and loss arguments, on the device, for every part of the rows.

        total: the number of counted labels in all parts.
        """
        number, parts = len(batch.target), self.recipe.microbatches
        if number % parts:
            raise ValueError(f"the batch must divide into {parts} microbatches; got {number} rows")
        rows, sides = number // parts, None
        for first in range(0, number, rows) if rows else (0,):
            chosen, counts = slice(first, first + rows), True
            if self._placed is not None:
                self._follow(batch.each(itemgetter(chosen)))
                chosen, counts = self._placed.computed(range(first, first + rows))
                self._placed.reduces(last=first + rows == number)
            own = batch.each(itemgetter(chosen))
            if self._placed is None:  # found on the host, which then need not wait for the device
                read = own.source, own.target
                sides = unpadding.find(self._objective, self._least, *read, **self._weighted)
                sides = None if sides is None else sides.to(self._device)
            if keep is None:
                masks: dropout.Keep | None = canonical.nest(self._draw(own, sides, chosen))
            else:
                given = {site: x[chosen] for site, x in canonical.flatten(keep).items()}
                moved = {site: weights.from_numpy(x, self._device) for site, x in given.items()}
                masks = canonical.nest(moved)
                masks = masks if sides is None else unpadding.unpad_keep(masks, sides)
            own = own.each(self._moved)
            # Rows of another process have loss 0 and zero gradients.
            own_total = total if counts else torch.full_like(total, math.inf, dtype=self._float)
            yield sides, (own.source, own.target, self.recipe.smoothing, own_total, masks or None)

    def _draw(
        self, batch: Batch, sides: unpadding.Sides | None, chosen: slice
    ) -> dict[str, Tensor]:
        """Draws keep masks for all sites from one run of random words, 16 bits per entry, which is
        several times faster than one draw per site.

        Attention weights are left to torch's kernel, which never stores them; on a mesh they get
        masks like all sites, and the masks of a row are the same on every mesh.
        """
        config, (source, target) = self.config, batch
        read = 0 if config.classes else target.shape[1] - 1
        lengths = 0 if source is None else source.shape[1], read
        if self._placed is not None:
            rows = range(chosen.start, chosen.stop)
            return draw(config, rows, lengths, self.seed, self.steps, self._device)
        shapes = sites.shapes(config, len(target), *lengths)
        shapes = {site: x for site, x in shapes.items() if not site.endswith("weights_dropout")}
        flat = {} if sides is None else sides.of_sites(shapes)
        shapes |= {site: (1, tokens.number, *shapes[site][2:]) for site, tokens in flat.items()}
        entries = sum(map(math.prod, shapes.values()))
        masks = dropout.cut(config, shapes, dropout.words(entries, self._device))
        for site, tokens in flat.items():
            if tokens.index_n is not None:
                unpadding.of_any_number(masks[site], 1)
        return masks

    def _backward(self, sides: unpadding.Sides | None, given: Given) -> Tensor:
        with recomputed(self._model) if self._recompute else contextlib.nullcontext():
            if sides is None:
                loss = self._loss(*given)
            else:
                loss = self._flat_loss(self._model, sides, *given)
        loss.backward()
        return loss.detach()

    def _clip(self, limit: float) -> None:
        gradients = {name: x.grad for name, x in self._tensors.items() if x.grad is not None}
        if self._placed is None:
            clipped = canonical.flatten(optimizer.clip_global_norm(gradients, limit))
        else:
            clipped = self._placed.clipped(gradients, limit)
        for name, gradient in clipped.items():
            self._tensors[name].grad = gradient

    def _check(self, batch: Batch) -> None:
        """Raises ValueError on an invalid batch, since a compiled graph sees no values."""
        config, (source, target) = self.config, batch
        checks.check_source_given(config.encoder_layers, source)
        if config.classes:
            self._model.check_ids(source, label_b=target)
        else:
            checks.check_target(target.shape, dtype_name(target.dtype))
            self._model.check_ids(source, target)
            checks.check_length(target.shape[1] - 1, config.max_positions)
        if source is not None:
            checks.check_length(source.shape[1], config.max_positions)

    def _follow(self, batch: Batch) -> None:
        """Prepares the processes of a mesh to read their rows as parts of this batch."""
        if not len(batch.target):
            raise ValueError("a batch on a mesh must have rows; got none")
        target = None if self.config.classes else Text(batch.target[:, :-1])
        lengths.follow(self._model, Text.of(batch.source), target)

    def _moved(self, token: Tensor) -> Tensor:
        """Moves ids, as int64, or soft rows to the device."""
        token = token.to(self._device)
        return token if token.is_floating_point() else token.long()

    def _count(self, batch: Batch) -> int:
        """Returns the number of labels that count; every class does."""
        label = batch.target if self.config.classes else batch.target[:, 1:]
        real = None if self.config.classes else real_tokens(self.config, Text(label))
        return label.numel() if real is None else int(real.sum())


@contextlib.contextmanager
def _seeded(device: torch.device, seed: int, steps: int) -> Iterator[None]:
    """Seeds the device's generator from seed and step, and restores it afterward."""
    devices = [device.index or torch.cuda.current_device()] if device.type == "cuda" else []
    drawn = np.random.SeedSequence([seed, steps]).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices):
        own = torch.cuda.default_generators[devices[0]] if devices else torch.default_generator
        own.manual_seed(int(drawn[0]))
        yield


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Makes every sum deterministic, such as gradients of embeddings; one step at a time."""
    flags, fill = torch.utils.deterministic, "fill_uninitialized_memory"
    with _PROCESS, contextlib.ExitStack() as after:
        enabled = torch.are_deterministic_algorithms_enabled()
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        after.callback(torch.use_deterministic_algorithms, enabled, warn_only=warns)
        after.callback(setattr, flags, fill, getattr(flags, fill))
        setattr(flags, fill, False)  # nothing here reads such memory
        torch.use_deterministic_algorithms(True)
        yield
