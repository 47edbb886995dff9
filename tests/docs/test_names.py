"""What the documentation calls by a name is there under this name."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, pages

import outgrow as og

FILES = [*pages(), ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
_NAME = re.compile(r"(?<![\w./-])og\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
_ERROR = re.compile(r"`([A-Z]\w*(?:Error|Warning))`")


def unknown_names(text: str) -> set[str]:
    """Names of a text that `outgrow` does not have; errors are Python's own, or exported."""
    unknown = set()
    for match in _NAME.finditer(text):
        found: object = og
        for part in match[1].split("."):
            if not hasattr(found, part):
                unknown.add(match[0])
                break
            found = getattr(found, part)
    errors = {match[1] for match in _ERROR.finditer(text)}
    return unknown | {name for name in errors if not hasattr(builtins, name) and not hasattr(og, name)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_name_of_a_page_is_public(path: Path) -> None:
    assert not unknown_names(path.read_text("utf-8"))


def test_there_are_names_to_look_for() -> None:
    assert sum(len(_NAME.findall(path.read_text("utf-8"))) for path in FILES) > 100


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("`og.train(graph)` and `og.nn.GCN`", set()),
        ("og.strategies.Strategy, and `og.Outlook`", {"og.Outlook"}),
        ("`og.nn.GCN.from_pyg(...)`", {"og.nn.GCN.from_pyg"}),
        ("`StoreError`, `ValueError`, `LostError`", {"LostError"}),
        ("see log.txt, https://example.org/og.html", set()),
    ],
)
def test_names_that_are_not_there_are_found(text: str, unknown: set[str]) -> None:
    assert unknown_names(text) == unknown


def test_errors_are_exported_with_what_they_inherit() -> None:
    for name in ("InputError", "StoreError", "TrainingError", "WorkerError"):
        assert issubclass(getattr(og, name), og.OutgrowError)
        assert name in og.__all__
    assert og.PlanReport.__name__ == "PlanReport"
