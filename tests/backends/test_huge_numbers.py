"""Out-of-range numbers in every option: one clear error, never an OverflowError, an allocation or a wait."""

from typing import Any

import numpy as np
import pytest

from reference_numpy import decoding, parameters, preset
from reference_numpy.recipe import PAPER
from reference_numpy.strategy import Strategy

HUGE = (10**400, -(10**400), float("nan"), float("inf"), True, "1", [1])
CONFIG = preset("tiny")
STRATEGY = {"start_id": 1, "end_id": 2, "max_new_tokens": 5}
NUMBERS = {
    "config": [name for name, value in CONFIG.to_dict().items() if type(value) in (int, float)],
    "recipe": [*PAPER.to_dict()],
    "strategy": [name for name in Strategy(**STRATEGY).__dict__ if name != "early_stop"],
}


def make(kind: str, changes: dict[str, Any]) -> Any:
    return {"config": CONFIG, "recipe": PAPER, "strategy": Strategy(**STRATEGY)}[kind].replace(**changes)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NUMBERS.items() for name in names])
@pytest.mark.parametrize("value", HUGE, ids=[f"{value!r:.12}" for value in HUGE])
def test_a_number_beyond_its_range_is_one_short_error(kind: str, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be") as caught:
        make(kind, {name: value})
    assert len(str(caught.value)) < 400


def test_a_hundred_thousand_unknown_fields_are_listed_in_part() -> None:
    fields = {f"field {index} {'x' * 300}": 1 for index in range(100_000)}
    for refuse in (CONFIG.replace, PAPER.replace):
        with pytest.raises(ValueError, match=r"and 99980 more$") as caught:
            refuse(**fields)
        assert len(str(caught.value)) < 5000


def test_a_billion_tokens_are_refused_and_the_longest_answer_that_ends_at_once_does_not_wait() -> None:
    with pytest.raises(ValueError, match=r"max_new_tokens.*65536; got 1000000000"):
        Strategy(**STRATEGY | {"max_new_tokens": 10**9})
    config = preset("tiny", model_width=4, heads=1, key_value_heads=1, key_size=4, value_size=4, feed_forward_width=4, encoder_layers=1,
                    decoder_layers=1, output_bias=True)  # fmt: skip
    values = {name: np.zeros(shape) for name, shape in parameters.shapes(config).items()}
    values["logits.bias"][2] = 50
    options = STRATEGY | {"max_new_tokens": 2**16}
    for search, more in ((decoding.greedy_search, {}), (decoding.sample, {"uniform_bn": np.full((1, 2**16), 0.5)})):
        found = search(parameters.nest(values), config, np.array([[3]]), options, **more)
        assert found["token_bn"].shape == found["log_p_bn"].shape == (1, 2**16)
        assert found["token_bn"][0, 0] == 2 and not found["token_bn"][0, 1:].any() and not found["log_p_bn"][0, 1:].any()
    found = decoding.beam_search(parameters.nest(values), config, np.array([[3]]), options)
    assert found["token_bwn"].shape == (1, 1, 2**16) and found["token_bwn"][0, 0, 0] == 2 and not found["token_bwn"][0, 0, 1:].any()
