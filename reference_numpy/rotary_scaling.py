"""Frequency scaling of rotary positions, for texts longer than in training."""

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Annotated, ClassVar

from . import fields

__all__ = ["SCALINGS", "RotaryScaling"]

# the parameters of each kind, all required
SCALINGS: dict[str, tuple[str, ...]] = {
    "none": (),
    "linear": ("factor",),
    "dynamic": ("factor", "original_length"),
    "llama3": ("factor", "original_length", "low_frequency_factor", "high_frequency_factor"),
    "yarn": ("factor", "original_length", "beta_fast", "beta_slow", "truncate", "attention_factor"),
    "longrope": ("original_length", "short_factors", "long_factors", "attention_factor"),
}

_POSITIVE = fields.POSITIVE._replace(wanted="a number greater than 0")
_Number = Annotated[float | None, fields.or_none(_POSITIVE), fields.MODERATE]
_Length = Annotated[int | None, fields.or_none(fields.integer(2))]
_Flag = Annotated[
    bool | None, fields.or_none(fields.BOOLEAN)._replace(wanted="True, False or None")
]
_Factors = Annotated[
    tuple[float, ...] | None,
    fields.or_none(fields.sequence_of(fields.POSITIVE)._replace(wanted="numbers greater than 0")),
    fields.or_none(fields.sequence_of(fields.MODERATE))._replace(wanted=fields.MODERATE.wanted),
]


@dataclass(frozen=True, kw_only=True)
class RotaryScaling(fields.Fields):
    """A kind of scaling and its parameters; `SCALINGS` lists the parameters of each kind.

    Raises ValueError naming every parameter that is out of range, missing, or of another kind.
    """

    KIND: ClassVar[str] = "rotary scaling"

    kind: Annotated[str, fields.NAME, fields.one_of(SCALINGS)] = "none"
    factor: _Number = None  # how many times longer texts are than in training
    original_length: _Length = None  # text length in training
    low_frequency_factor: _Number = None  # llama3: wavelengths above length / this are scaled
    high_frequency_factor: _Number = None  # llama3: wavelengths below length / this are kept
    beta_fast: _Number = None  # yarn: pairs that turn more often than this within length are kept
    beta_slow: _Number = None  # yarn: pairs that turn less often than this are scaled
    truncate: _Flag = None  # yarn: round the two bounds to whole pairs
    attention_factor: _Number = None  # yarn, longrope: multiplies cosine and sine
    short_factors: _Factors = None  # longrope: divide the frequencies up to the original length
    long_factors: _Factors = None  # longrope: divide the frequencies beyond the original length

    def __post_init__(self) -> None:
        for name in ("short_factors", "long_factors"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        super().__post_init__()

    def _conflicts(self) -> Iterator[str]:
        needed = SCALINGS.get(self.kind, ())
        for field in fields_of(self)[1:]:
            value: object = getattr(self, field.name)
            if field.name in needed and value is None:
                yield f"{self.kind} scaling needs {field.name}; got None"
            if field.name not in needed and value is not None:
                yield f"{self.kind} scaling has no {field.name}; got {value!r:.50}"
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if low is not None and high is not None and not low < high:
            wanted = "low_frequency_factor must be less than high_frequency_factor"
            yield f"{wanted}; got {low} and {high}"
        if self.kind == "longrope" and self.short_factors and self.long_factors:
            short, long = len(self.short_factors), len(self.long_factors)
            if short != long:
                yield f"short_factors and long_factors must have equal length; got {short}, {long}"

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name in ("kind", *SCALINGS.get(self.kind, ())))
        return f"RotaryScaling({', '.join(f'{name}={value!r}' for name, value in values)})"

    def to_dict(self) -> fields.Values:
        """Returns the kind and its parameters, as JSON can hold them."""
        values = super().to_dict()
        return {name: values[name] for name in ("kind", *SCALINGS[self.kind])}

    @property
    def by_length(self) -> bool:
        """Whether the frequencies depend on the length of the text."""
        return self.kind in ("dynamic", "longrope")
