"""Generation options: every choice of the searches and of sampling."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from .config import TransformerConfig as Config
from .fields import BOOLEAN, FRACTION, Fields, Rule, at_least, at_most, integer, is_number, or_none

__all__ = ["Options", "Strategy"]

LONGEST = 2**16  # max_new_tokens: every answer reserves room for them, however early it ends
_OVERFLOW = 128 * math.log(2)  # the log of the first number that overflows float32

_Natural = Annotated[int, integer(0)]
_Count = Annotated[int, integer(1)]
_Flag = Annotated[bool, BOOLEAN]
_Id = Annotated[int | None, or_none(integer(0))]
_Penalty = Annotated[
    float, Rule(lambda value: is_number(value) and 1e-9 <= value <= 1e9, "from 1e-9 to 1e9")
]
_Temperature = Annotated[
    float,
    Rule(lambda value: is_number(value) and (value == 0 or value >= 1e-9), "0, or at least 1e-9"),
]
_Probability = Annotated[float, FRACTION]
_Exponent = Annotated[
    float, at_least(0)._replace(wanted="at least 0, since smaller values have no stopping bound")
]


@dataclass(frozen=True, kw_only=True)
class Strategy(Fields):
    """The options of an answer; a search ignores the fields that it does not use.

    Raises ValueError naming every field that is out of range, with the requirement and the value.
    """

    KIND: ClassVar[str] = "strategy"
    LARGEST: ClassVar[int] = 2**31 - 1  # programs hold integers in 32 bits

    start_id: _Id  # begins the target and is never chosen; None: every target needs a prefix
    end_id: _Natural  # ends an answer
    max_new_tokens: Annotated[int, integer(1), at_most(LONGEST)]  # including the end token
    min_new_tokens: _Natural = 0  # tokens required before the end token
    repetition_penalty: _Penalty = 1.0  # lowers tokens that the target already contains (SAMPLE)
    no_repeat_ngram: _Natural = 0  # no run of n tokens may repeat in the target; 0: any may
    temperature: _Temperature = 1.0  # divides the sampled logits; 0: take the likeliest token
    top_k: _Natural = 0  # sample from the k likeliest tokens; 0: from all
    top_p: _Probability = 1.0  # sample from the likeliest tokens that together reach top_p
    beam_size: _Count = 1  # live beams per row
    n_best: _Count = 1  # hypotheses returned per row
    alpha: _Exponent = 0.6  # exponent of the length penalty (BEAM)
    early_stop: _Flag = False  # stop at beam_size hypotheses, even if others could still beat them

    def _conflicts(self) -> Iterator[str]:
        if self.min_new_tokens >= self.max_new_tokens:
            got = f"{self.min_new_tokens} and {self.max_new_tokens}"
            yield f"min_new_tokens must be less than max_new_tokens; got {got}"
        if self.n_best > self.beam_size:
            yield f"n_best must be at most beam_size; got {self.n_best} and {self.beam_size}"
        if self.alpha * (math.log(5 + self.max_new_tokens) - math.log(6)) >= _OVERFLOW:
            yield (
                "alpha must keep the penalty of the longest answer, ((5 + n) / 6)^alpha, "
                f"finite in float32; got {self.alpha} for n={self.max_new_tokens}"
            )

    @classmethod
    def of(cls, fields: "Options", config: Config) -> "Strategy":
        """Returns the strategy, or one with these fields, if a model of this config can follow it.

        Raises ValueError on unknown, missing or out-of-range fields, and on ids and beams that do
        not fit the vocabulary.
        """
        result = fields if isinstance(fields, Strategy) else cls.from_dict(fields)
        problems = [
            f"{name} must be in 0 .. {config.target_vocabulary - 1}; got {id_}"
            for name, id_ in (("start_id", result.start_id), ("end_id", result.end_id))
            if id_ is not None and not 0 <= id_ < config.target_vocabulary
        ]
        if result.start_id is not None and result.start_id == config.padding_id:
            wanted = "start_id must not be the padding id, which attention masks"
            problems.append(f"{wanted}; got {result.start_id}")
        if result.end_id == config.padding_id:
            problems.append(f"end_id must not be the padding id; got {result.end_id}")
        if result.beam_size > config.target_vocabulary:
            wanted = f"beam_size must be at most the vocabulary size, {config.target_vocabulary}"
            problems.append(f"{wanted}; got {result.beam_size}")
        if problems:
            raise ValueError("; ".join(problems))
        return result

    def forbidden_ids(self, config: Config) -> list[int]:
        """Returns the ids excluded from answers: padding, and the start unless it is the end."""
        ids = {config.padding_id, self.start_id} - {None, self.end_id}
        return sorted(ids)  # type: ignore[arg-type, type-var]

    def pad_id(self, config: Config) -> int:
        """Returns the id after the end of an answer: padding, or the end token if there is none."""
        return self.end_id if config.padding_id is None else config.padding_id


Options = Strategy | Mapping[str, Any]  # a strategy, or its fields
