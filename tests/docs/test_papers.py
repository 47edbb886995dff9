"""The page on the papers has a row for every figure and table with measurements, and counts them right."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from tests.docs.pages import DOCS, ROOT

EXPERIMENTS = {
    "HongTu": "Table 1, Table 3, Table 5, Table 6, Table 7, Table 8, Table 9, Fig. 8, Fig. 9, Fig. 10, Fig. 11",
    "NeutronTP": "Fig. 3, Fig. 4, Fig. 5, Table 2, Fig. 10, Fig. 11, Fig. 12, Fig. 13, Fig. 14, Fig. 15, Fig. 16, "
    "Table 3, Table 4",
    "GSplit": "Table 1, Table 2, Fig. 6, Fig. 7, Fig. 8, Fig. 9, Fig. 10, Table 4, Table 5",
    "HopGNN": "Fig. 4, Fig. 5, Fig. 7, Table 1, Fig. 11, Fig. 12, Fig. 13, Fig. 14, Fig. 15, Fig. 16, Fig. 17, "
    "Fig. 18, Fig. 19, Fig. 20, Fig. 21, Fig. 22, Fig. 23, Table 3",
    "NeutronOrch": "Fig. 2, Table 2, Table 3, Fig. 6, Fig. 7, Fig. 10, Fig. 11, Fig. 12, Fig. 13, Fig. 14, Fig. 15, "
    "Fig. 16, Table 5, Table 6",
}
"""Figures and tables with measurements. The others are drawings, algorithms, and lists of data sets and systems."""
EXTENTS = ("shown", "partly", "not")
LEAST_SHARE = 0.9
PAGE = (DOCS / "papers.md").read_text()
_ROW = re.compile(r"^\| ((?:Fig|Table)s?\.? [\d, ]+?) \|(.*)\|$", re.MULTILINE)
_SUMMARY = re.compile(r"^\| [^|]*\*(?P<paper>\w+): [^|]*\|[^|]*\| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


def get_rows(paper: str) -> list[tuple[list[str], list[str]]]:
    """The experiments of each row of a paper's table, and the row's other cells."""
    section = PAGE.split(f"\n## {paper}\n")[1].split("\n## ")[0]
    rows = []
    for names, cells in _ROW.findall(section):
        kind = "Table" if names.startswith("Table") else "Fig."
        rows.append(([f"{kind} {number}" for number in re.findall(r"\d+", names)], [*map(str.strip, cells.split("|"))]))
    return rows


def count_extents(paper: str) -> Counter[str]:
    return Counter(cells[-1] for names, cells in get_rows(paper) for _ in names)


@pytest.mark.parametrize("paper", EXPERIMENTS)
def test_each_figure_and_table_has_one_row(paper: str) -> None:
    found = [name for names, _ in get_rows(paper) for name in names]
    assert sorted(found) == sorted(EXPERIMENTS[paper].split(", "))


@pytest.mark.parametrize("paper", EXPERIMENTS)
def test_what_is_shown_has_its_results_and_what_is_not_a_reason(paper: str) -> None:
    for names, cells in get_rows(paper):
        *_, here, results, extent = cells
        assert extent in EXTENTS, names
        assert here, names
        assert bool(results) == (extent != "not"), names
        for name in re.findall(r"`([^`]+)`", results):
            assert [*(ROOT / "benchmarks" / "results").glob(name)], f"{names}: no {name}"


def test_the_summary_counts_the_rows() -> None:
    counted = {paper: tuple(count_extents(paper)[extent] for extent in EXTENTS) for paper in EXPERIMENTS}
    said = {paper: tuple(map(int, numbers)) for paper, *numbers in _SUMMARY.findall(PAGE)}
    assert said == counted
    total = sum(map(sum, counted.values()))
    reached = total - sum(of[-1] for of in counted.values())
    assert f"{reached} of {total}" in PAGE
    assert reached >= LEAST_SHARE * total
