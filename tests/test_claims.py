"""The numbers of the pages are those of the logs in `results/`, and no number of the pages of claims is unchecked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attngeo.errors import InputError
from experiments.claims import CHECKED, PAGES, ROOT, figure, main, unmarked_numbers, with_figures


@pytest.mark.parametrize("page", PAGES)
def test_every_marked_number_of_a_page_is_that_of_the_logs(page: str, models: Path) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert with_figures(text) == text, f"python -m experiments.claims {page}"


@pytest.mark.parametrize("page", CHECKED)
def test_every_number_of_a_page_of_claims_is_marked(page: str) -> None:
    assert unmarked_numbers((ROOT / page).read_text("utf-8")) == []


@pytest.mark.parametrize("page", PAGES)
def test_no_line_begins_with_a_mark(page: str) -> None:
    """Markdown would take the line for HTML and show what follows as it is written."""
    assert not re.search(r"^\s*<!--[=/]", (ROOT / page).read_text("utf-8"), re.M)


def test_a_stale_number_is_found_and_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("It saves <!--=saved:bert-5e-4:symmetric-->50%<!--/--> of the steps, in 7.5% of the runs.\n")
    assert unmarked_numbers(page.read_text()) == ["7.5%"]
    assert main([str(page)]) == 0
    assert page.read_text() == (
        "It saves <!--=saved:bert-5e-4:symmetric-->33% [30, 36]<!--/--> of the steps, in 7.5% of the runs.\n"
    )


@pytest.mark.parametrize("name", ["steps:bert-5e-4:symmetric", "saved:bert-7:symmetric", "saved:bert-5e-4", "paper:0"])
def test_a_figure_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        figure(name)
