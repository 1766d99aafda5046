"""The problem that every framework solves: one model, one batch, and the search settings."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters
from reference_numpy.recipe import PAPER, Recipe
from reference_numpy.strategy import Strategy

from .workloads import END, PADDING, START, Task, config_of

NEVER = -30.0  # logit bias of forbidden tokens, so that peers need no option for them
QUIET = 0.3  # scale of a decoder layer's output if its norms have offsets


@dataclass(frozen=True)
class Problem:
    """A config, float32 parameters, right-padded token ids, and settings.

    source: the input tokens; in a search, a decoder-only model's prompts. target: the decoder's
    input in a forward pass. `sequence` is the target of a training step.
    """

    task: Task
    config: TransformerConfig
    tensors: dict[str, np.ndarray]
    source: np.ndarray
    target: np.ndarray
    recipe: Recipe = PAPER

    @property
    def encoded(self) -> np.ndarray | None:
        """The encoder's input; None without an encoder."""
        return self.source if self.config.encoder_layers else None

    @property
    def inputs(self) -> tuple[np.ndarray | None, ...]:
        """The arguments of a forward pass; without a decoder there is no target."""
        return (self.source,) if self.task.kind == "encoder" else (self.encoded, self.target)

    @property
    def question(self) -> dict[str, np.ndarray | None]:
        """The arguments of a search, by name: the source, or a decoder-only model's prompts."""
        return {"source": self.encoded} if self.config.encoder_layers else {"source": None, "prefix": self.source}

    @property
    def begin(self) -> np.ndarray:
        """The tokens that every output continues, `b p`: the start token or the prompt."""
        return np.full((len(self.source), 1), START) if self.config.encoder_layers else self.source

    @property
    def sequence(self) -> np.ndarray:
        """One token longer than target: inputs are all but the last, labels all but the first."""
        return np.concatenate([np.ones((len(self.target), 1), self.target.dtype), self.target], axis=1)

    @property
    def checked(self) -> "Problem":
        """The problem for comparing training steps: no dropout, a larger learning rate."""
        config, recipe = self.config.replace(dropout_rate=0.0), self.recipe.replace(warmup=40)
        return dataclasses.replace(self, config=config, recipe=recipe)

    @property
    def strategy(self) -> Strategy:
        """Search settings for exactly new_tokens tokens: the end token may only come last."""
        count, beams = self.task.new_tokens, self.task.beams
        start_id = START if self.config.encoder_layers else None
        return Strategy(start_id=start_id, end_id=END, max_new_tokens=count, min_new_tokens=count - 1, beam_size=beams, n_best=beams)


def make(task: Task, seed: int = 0) -> Problem:
    """Returns the task's problem."""
    rng, config = np.random.default_rng(seed), config_of(task)
    tensors = parameters.initialise(config, seed, np.float32)
    for name, tensor in tensors.items():
        if name.endswith(("bias", "scale", "offset")):  # initial values 0 and 1 would hide swapped parameters
            tensor += rng.normal(0, 0.1, tensor.shape).astype(np.float32)
    if task.decodes:
        _enliven(rng, config, tensors)
    share = np.linspace(1 - 2 * task.padding, 1, task.batch) if task.batch > 1 else np.array([1 - task.padding])
    lengths = np.maximum(np.rint(share * task.length), 1)  # no empty rows
    source, target = (_tokens(rng, config.source_vocabulary, part, task.length) for part in (lengths, rng.permutation(lengths)))
    return Problem(task, config, tensors, source, target)


def _enliven(rng: np.random.Generator, config: TransformerConfig, tensors: dict[str, np.ndarray]) -> None:
    """Makes outputs vary: a new tied model repeats one token, which would hide a wrong cache.

    The last norm flips half of the features, so that no token predicts itself. Layers with offsets,
    which are equal for all tokens, are scaled down, so that the next token depends on the current
    one. If there is no logit bias, no output ends.
    """
    last = "final_norm" if config.final_norm else f"layers.{config.decoder_layers - 1}.feed_forward_norm"
    scale = tensors[f"decoder.{last}.scale"]
    scale *= rng.choice([-1, 1], scale.shape)
    if config.output_bias:
        tensors["logits.bias"][[PADDING, START]] = NEVER
    elif config.norm_offset:  # a feature that is always 1 acts as the bias
        scale[0], tensors[f"decoder.{last}.offset"][0] = 0, 1
        tensors["target_embedding.table"][END, 0] = NEVER
    elif config.tie_logits:  # a logit of 0 is never the largest
        tensors["target_embedding.table"][END] = 0
    else:
        tensors["logits.kernel"][:, END] = 0
    for name, tensor in tensors.items():
        if config.norm_offset and name.startswith("decoder.") and name.endswith("output.kernel"):
            tensor *= QUIET


def optional(place: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray | None], Any]:
    """Returns the function, changed to return None for None."""
    return lambda token: None if token is None else place(token)


def renamed(tensors: Mapping[str, Any], parts: Mapping[str, str]) -> dict[str, Any]:
    """Renames parts of the tensors' names, in this order."""
    result = {}
    for name, tensor in tensors.items():
        for part, other in parts.items():
            name = name.replace(part, other)
        result[name] = tensor
    return result


def products(problem: Problem) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Returns the shapes of the forward pass's matrix products, merged where possible."""
    config, batch, length = problem.config, problem.task.batch, problem.task.length
    d, f, tokens = config.model_width, config.feed_forward_width, batch * length
    h, k, e = config.heads, config.key_size, config.value_size
    query, key, value, out = h * k, config.key_value_heads * k, config.key_value_heads * e, (1, tokens, h * e, d)
    heads = [(batch * h, length, k, length), (batch * h, length, length, e)]
    own = [(1, tokens, d, query + key + value), *heads, out]
    other = [(1, tokens, d, query), (1, tokens, d, key + value), *heads, out]
    hidden = [(1, tokens, d, f * (1 + config.gated_feed_forward)), (1, tokens, f, d)]
    layers = config.encoder_layers * [*own, *hidden] + config.decoder_layers * [*own, *other * config.cross_attention, *hidden]
    logits = [(1, tokens, d, config.target_vocabulary)] * (config.decoder_layers > 0)
    return [
        ((rows, inner), (inner, columns)) if count == 1 else ((count, rows, inner), (count, inner, columns))
        for count, rows, inner, columns in layers + logits  # batch, rows, inner, columns
    ]


def _tokens(rng: np.random.Generator, vocabulary: int, lengths: np.ndarray, longest: int) -> np.ndarray:
    token = rng.integers(END + 1, vocabulary, (len(lengths), longest))
    return np.where(np.arange(longest) < lengths[:, None], token, PADDING)
