"""A port that fixes config fields gets all cases that these fields do not exclude; a decoder-only port gets all of generation."""

from typing import Any

import pytest
from kinds import every

from reference_numpy import preset
from rosettaformer.judge.suite import all_cases, decoders, decoding, single_stack
from rosettaformer.judge.suite.asked import Suite, asked
from rosettaformer.judge.suite.build import Builder, excluded
from rosettaformer.judge.suite.hidden import Hidden

MODULES = (decoding, single_stack, decoders)
GENERATION, CHOICES = ("greedy_search", "sample", "beam_search", "decode_in_steps"), ("penalise", "truncate", "draw")
CHOSEN = (
    "encoder_layers", "positions", "norm_placement", "final_norm", "activation", "tie_logits", "scale_embedding", "output_bias", "segments",
    "position_start", "embedding_norm", "norm", "norm_offset", "gated_feed_forward", "padding_id", "query_key_value_bias",
    "attention_output_bias", "feed_forward_bias",
)  # fmt: skip
# the fields a decoder-only port fixes -> the number of generation cases that need another value of them
DECODERS: dict[str, tuple[dict[str, Any], int]] = {
    "stack": ({"encoder_layers": 0}, 0),
    "llama": ({name: getattr(preset("llama2_7b"), name) for name in CHOSEN}, 7),
    "gpt2": ({name: getattr(preset("gpt2_small"), name) for name in CHOSEN}, 6),
    "sizes": ({"encoder_layers": 0, "target_vocabulary": 50, "model_width": 16}, 8),
}


@pytest.mark.parametrize("name", every(2, DECODERS))
def test_a_decoder_only_port_is_asked_all_of_generation(name: str) -> None:
    """With every option of a strategy; of token selection, every case."""
    fixed, others = DECODERS[name]
    build, own = Builder(fixed), Builder({})
    cases = [excluded(case, fixed) for module in MODULES for case in module.cases(build) if case.component in GENERATION + CHOICES]
    asked = [case for case in cases if not case.excluded]
    assert len(cases) - len(asked) <= others, [(case.id, case.excluded) for case in cases if case.excluded]
    options = {(case.component, key) for case in decoding.cases(own) for key in case.inputs if key.startswith("strategy.")}
    assert options <= {(case.component, key) for case in asked for key in case.inputs}
    assert all(case.inputs.get("source") is None and case.inputs.get("memory_bsd") is None for case in asked)
    assert not [case.id for case in cases if case.component in CHOICES and case.excluded]


@pytest.mark.conformance
@pytest.mark.parametrize("name", DECODERS)
def test_what_a_decoder_only_port_is_asked_of_generation_is_not_vacuous(name: str) -> None:
    cases = all_cases(DECODERS[name][0])
    hidden = Hidden(cases, all_cases())
    assert not [reason for case in cases if case.component in GENERATION and not case.excluded and (reason := hidden.reason(case))]


def test_fields_that_make_no_config_are_refused() -> None:
    """Although some cases do not read the config."""
    with pytest.raises(ValueError, match="key_size"):
        all_cases({"positions": "rotary", "key_size": 3})


def test_a_gradient_that_a_port_cannot_be_asked_is_excluded_with_the_reason() -> None:
    """Gradients of components that read an encoder the port lacks."""
    fixed = {"encoder_layers": 0}
    cases = [case for case in all_cases(grad=True) if case.component == "decoder_vjp"]
    lost = {case.id for case in cases} - {case.id for case in all_cases(fixed, grad=True)}
    found = asked(Suite(cases), {"config": fixed}).cases
    assert [case.id for case in found] == [case.id for case in cases]
    assert lost and all(case.excluded for case in found if case.id in lost)
