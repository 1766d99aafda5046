"""Numbers in the words of one language, to be put into the words of another: every answer is exact, and no data is needed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reference_numpy.suggestions import known

from .task import Data, Task, split

__all__ = ["NumberWords"]

MOST = 1_000_000  # what num2words spells in minutes


@dataclass(frozen=True, kw_only=True)
class NumberWords(Task):
    """The numbers 0 .. limit, spelled by num2words; held-out numbers never appear in training."""

    name: ClassVar[str] = "number-words"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocabulary": 400, "batch_tokens": 2048, "buckets": 1, "warmup": 1000, "steps": 800, "validate_every": 200, "save_every": 50,
    }  # fmt: skip
    from_language: str = "es"
    to_language: str = "en"
    limit: int = 9_999

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit < 0:
            raise ValueError(f"--limit must be at least 0; got {self.limit}")
        if self.limit > MOST:
            raise ValueError(f"--limit must be at most {MOST}; got {self.limit}")

    def data(self) -> Data:
        spelled = (_spell(language, self.limit) for language in (self.from_language, self.to_language))
        return split(list(zip(*spelled, strict=True)), self.held_out, self.seed)


def _spell(language: str, limit: int) -> list[str]:
    from num2words import CONVERTER_CLASSES, num2words

    known("a language", [language], sorted(CONVERTER_CLASSES))
    try:
        return [num2words(number, lang=language) for number in range(limit + 1)]
    except (NotImplementedError, OverflowError, IndexError, KeyError) as error:
        raise ValueError(f"num2words cannot spell every number up to {limit} in {language!r}: {error!r}") from None
