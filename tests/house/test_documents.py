"""Documents that a command makes are of this suite release, slow ones of a stated one; the command that makes one is named."""

import re

import api
import files
import performance
import pytest
from documents import DOCUMENTS, HOUSE, SLOW, made_by, made_of, stamped

from rosettaformer.conformance.case import SUITE_RELEASE


@pytest.mark.parametrize(("document", "target"), DOCUMENTS.items())
def test_a_document_is_of_this_version(document: str, target: str) -> None:
    ((found, version),) = made_of((HOUSE / document).read_text())
    assert found == target
    assert version <= SUITE_RELEASE
    assert document in SLOW or version == SUITE_RELEASE, f"{document} is of an earlier suite release: make {target}"


def test_what_is_recorded_is_of_this_version_and_what_is_made_in_a_moment_is_what_its_command_makes() -> None:
    pages = [HOUSE / "README.md", *(page for page in (HOUSE / "docs").glob("*.md") if f"docs/{page.name}" not in SLOW)]
    shown = {page: re.findall(r"suite release (\d+)\)", page.read_text()) for page in pages}
    assert sum(map(len, shown.values())) > 3
    old = [str(page.relative_to(HOUSE)) for page, versions in shown.items() if {*versions} - {str(SUITE_RELEASE)}]
    assert not old, f"{', '.join(old)} have outputs of an earlier suite release: make docs"
    assert api.PAGE.read_text() == api.page(), "make api"
    assert files.PAGE.read_text() == files.page(), "make files"
    assert performance.PAGE.read_text() == performance.page(performance.tables()), "make performance"
    assert len(performance.PAGE.read_text().splitlines()) <= 80
    makefile = (HOUSE / "Makefile").read_text()
    targets = re.findall(r"^docs: (.*?)  ##", makefile, re.MULTILINE)[0].split()
    assert {*DOCUMENTS.values()} <= {*targets}
    assert all(f"\n{target}: " in makefile for target in targets)


def test_a_line_of_another_version_is_seen_and_put_right() -> None:
    old = made_by("wild").replace(str(SUITE_RELEASE), "1")
    assert made_of(f"# Title\n\n{old} More.\n") == [("wild", 1)]
    assert made_of(stamped(old)) == [("wild", SUITE_RELEASE)]
