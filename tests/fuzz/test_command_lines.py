"""Mistakes on the command line end in one error that says what to do."""

from __future__ import annotations

from pathlib import Path

import command_lines
import pytest
from command_lines import Verdict, draw_command_line, list_command_lines

FEW, MANY = 100, 500


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    monkeypatch.chdir(tmp_path)
    listed = list_command_lines(tmp_path)
    assert command_lines.run([*listed[0][:-3], "--out", "finished"]).code == 0
    of_links = next(line for line in listed if "links" in line)
    assert command_lines.run([*of_links[:-2], "--out", "linked"]).code == 0
    return listed


def test_the_command_lines_that_are_made_wrong_were_right(lines: list[list[str]]) -> None:
    for words in lines:
        verdict = command_lines.run(words)
        assert verdict.code == 0, (words, verdict.output)
        assert verdict.is_kept


@pytest.mark.parametrize("number", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_mistakes_are_told(number: int, lines: list[list[str]]) -> None:
    wrong = {}
    for seed in range(number):
        words = draw_command_line(lines, seed)
        verdict = command_lines.run(words)
        if not verdict.is_kept:
            wrong[seed] = (words, verdict)
    assert not wrong


@pytest.mark.parametrize(
    ("code", "output"),
    [
        (None, "Traceback (most recent call last)"),
        (0, "Traceback (most recent call last)"),
        (2, ""),
        (2, "error: too wide\n  got:  3\n"),
        (1, "it failed\n"),
        (3, "error: a\n  needed: b\n  got: c\n  repair: d\n"),
    ],
)
def test_what_is_no_error_for_people(code: int | None, output: str) -> None:
    assert not Verdict(code, output).is_kept
    assert Verdict(2, "error: a\n  needed:  b\n  got:     c\n  repair:  d\n").is_kept
