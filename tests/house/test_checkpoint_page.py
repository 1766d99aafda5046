"""docs/checkpoints.md has the tables of the families that the loader reads; `python tools/checkpoint_tables.py` writes them."""

import pytest
from checkpoint_tables import PAGE, entries, tensors

from rosettaformer.checkpoints.hugging_face import FAMILIES
from rosettaformer.checkpoints.hugging_face.family import Family


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_page_has_the_table_of_names_and_that_of_entries(family: Family) -> None:
    text = PAGE.read_text()
    assert tensors(family) in text
    assert entries(family) in text
