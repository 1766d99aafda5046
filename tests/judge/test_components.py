"""The table of components: entries it rejects, and that the suite, the reference and the ports match its declarations."""

import importlib

import pytest
from expectations import all_by_id

from reference_numpy import TransformerConfig
from rosettaformer.common.backends import PORTS
from rosettaformer.judge.components import DECLARED, read
from rosettaformer.judge.expectation.components import VJP, forward_of, module_of, signature_of

ROW = 'module = "m"\ngroup = "Masks"\npurpose = "Is for this."'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (ROW.replace("Masks", "Mask"), ValueError),
        (ROW.partition("\npurpose")[0], ValueError),
        (f'{ROW}\nkind = "parts"', ValueError),
        (f'{ROW}\nkind = "layout"', ValueError),  # a layout without a page
        ('module = "m"\nkind = "file"\ngroup = "Masks"', ValueError),
        (f'{ROW}\nplain = ["f"]\nwithout_plain = "It is long."', ValueError),
        (f"{ROW}\ncores = []", TypeError),
        (ROW.partition("\n")[2], TypeError),
    ],
)
def test_a_row_with_an_unknown_word_or_without_what_it_needs_is_refused(text: str, error: type[Exception]) -> None:
    assert read(f"[one]\n{ROW}")["one"].class_name == "One"
    with pytest.raises(error):
        read(f"[one]\n{text}")


def test_core_cases_are_those_of_the_suite() -> None:
    declared = {f"{one.name}/{name}" for one in DECLARED.values() for name in one.core}
    assert declared == {case.id for case in all_by_id().values() if case.core and not forward_of(case.component)}


def test_the_reference_has_every_component_its_gradient_and_its_arguments() -> None:
    fields = {name for names in TransformerConfig.groups().values() for name in names}
    values = {name for name, value in vars(TransformerConfig).items() if isinstance(value, property)}
    for name, one in DECLARED.items():
        assert one.arguments.keys() <= signature_of(name).parameters.keys(), name
        assert {*one.arguments.values()} <= {*fields, *values, "dtype"}, name
        assert one.model in ("", *DECLARED), name
        assert hasattr(module_of(one.module), name + VJP) == one.differentiable, name


@pytest.mark.parametrize("port", PORTS)
def test_our_ports_offer_what_is_their_own(port: str) -> None:
    module, needs, _ = PORTS[port]
    pytest.importorskip(needs)
    offered = importlib.import_module(module).components
    assert {*offered} == {name for name, one in DECLARED.items() if one.own}
