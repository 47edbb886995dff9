"""The order in which tests are begun is that of files that exist."""

from __future__ import annotations

from pathlib import Path

from order import LONGEST, TOGETHER, turn_of, unit_of

ROOT = Path(__file__).parents[1]


def test_files_that_are_named_exist() -> None:
    named = [*LONGEST, *(path for paths in TOGETHER.values() for path in paths)]
    assert [path for path in named if not (ROOT / path).is_file()] == []
    assert len({*LONGEST}) == len(LONGEST)


def test_files_stay_together_and_the_longest_come_first() -> None:
    [first, *_], path = TOGETHER["traffic"], "tests/core/test_sizes.py"
    assert unit_of(f"{first}::test_all[a::b]") == "traffic"
    assert unit_of(f"{path}::test_all[a::b]") == path
    assert turn_of(f"{path}::test_all") == len(LONGEST)
    assert [turn_of(f"{each}::test") for each in LONGEST] == [*range(len(LONGEST))]
