"""The pages about checkpoints have the tables of the families that the loader reads; `python tools/checkpoint_tables.py` writes them."""

import pytest
from checkpoint_tables import PAGES, entries, tensors

from rosettaformer.checkpoints.hugging_face import FAMILIES
from rosettaformer.checkpoints.hugging_face.family import Family


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_page_has_the_table_of_names_and_that_of_entries(family: Family) -> None:
    texts = [page.read_text() for page in PAGES]
    for kind, table in (("tensors", tensors(family)), ("entries", entries(family))):
        assert sum(f"<!-- {kind} of {family.name} -->\n{table}\n" in text for text in texts) == 1
