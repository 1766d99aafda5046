"""KerasHub's decoders behave as docs/keras-hub.md says on every Keras backend, with the causes it names."""

import pytest
from evidence import HOUSE
from hub_choices import BACKENDS, BASES, BESIDES, CHOICES, FOLDERS
from hub_measured import Cell, Cells, besides, folder_cell, measured, of_backend, stated, surprises
from kinds import conformance

pytest.importorskip("keras_hub", reason="keras_hub is not installed")
keras_hub_page = pytest.importorskip("keras_hub_page")

PAGE = (HOUSE / "docs" / "keras-hub.md").read_text()
# choice -> the page's entry, by family
MATRIX = {
    name: dict(zip(BASES, cells, strict=True))
    for name, *cells in (line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| "))
    if name in CHOICES and len(cells) == len(BASES)
}


def test_the_table_of_the_page_is_of_what_is_written_down() -> None:
    found: dict[str, Cells] = {
        backend: {
            (family, name): Cell("" if MATRIX[name][family] == "-" else stated(family, name, backend), 3.0)
            for name, choice in CHOICES.items()
            for family in BASES
            if backend in choice.backends
        }
        for backend in BACKENDS
    }
    assert {name: {family: keras_hub_page.cell(found, family, name) for family in BASES} for name in CHOICES} == MATRIX


@pytest.mark.parametrize("family", ["Qwen 3", *(conformance(family) for family in BASES if family != "Qwen 3")])
def test_a_backbone_gives_what_the_page_says(family: str) -> None:
    found = measured("tensorflow", [family])
    assert [*surprises("tensorflow", found)] == []
    lacking = {name for (_, name), cell in found.items() if not cell.outcome}
    assert lacking == {name for name, cells in MATRIX.items() if cells[family] == "-"}


@pytest.mark.conformance
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_on_another_backend_it_gives_what_the_page_says(backend: str) -> None:
    pytest.importorskip(backend)
    assert [*surprises(backend, of_backend(backend))] == []


@pytest.mark.conformance
def test_folders_of_hugging_face_give_what_the_page_says() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert {folder.name: folder_cell(folder).outcome for folder in FOLDERS} == {folder.name: folder.outcome for folder in FOLDERS}
    assert all(besides()), BESIDES
