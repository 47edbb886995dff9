"""What compiling took in runs is kept by their kind and the folder of kernels, and told of later ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outgrow.planning.hardware import compile_log
from outgrow.planning.hardware.compile_log import (
    CompiledRun,
    RunKind,
    add_compiled_run,
    expect_compile_seconds,
    read_compile_log,
    write_compile_log,
)

KIND = RunKind(like="GCN, full, cpu", digest="narrow")
WIDE = replace(KIND, digest="wide")


def run(kind: RunKind, folder: Path, seconds: float) -> CompiledRun:
    return CompiledRun(kind=kind, folder=str(folder), kernels=3, seconds=seconds)


def test_a_run_like_this_has_compiled_all(tmp_path: Path) -> None:
    assert expect_compile_seconds([run(KIND, tmp_path, 5.0)], KIND, tmp_path) == 0


def test_kernels_that_were_removed_are_compiled_again(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    assert expect_compile_seconds([run(KIND, folder, 5.0)], KIND, folder) == 5


def test_after_a_change_it_takes_as_long_as_before(tmp_path: Path) -> None:
    runs = [run(KIND, tmp_path / "old", 5.0), run(KIND, tmp_path / "older", 7.0), run(WIDE, tmp_path, 9.0)]
    assert expect_compile_seconds(runs, KIND, tmp_path) == 7


def test_another_width_may_need_other_kernels(tmp_path: Path) -> None:
    assert expect_compile_seconds([run(KIND, tmp_path, 5.0)], WIDE, tmp_path) == 5


def test_of_what_is_new_nothing_is_known(tmp_path: Path) -> None:
    other = RunKind(like="GAT, full, cpu", digest="other")
    assert expect_compile_seconds([run(KIND, tmp_path, 5.0)], other, tmp_path) is None


def test_a_later_run_does_not_hide_what_the_first_took(tmp_path: Path) -> None:
    first, later, wide = run(KIND, tmp_path, 5.0), run(KIND, tmp_path, 0.0), run(WIDE, tmp_path, 0.0)
    assert add_compiled_run([first, wide], later) == [wide, first]


def test_the_latest_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_log, "MOST_RUNS", 2)
    path = tmp_path / "compiled" / "here.json"
    runs = [run(KIND, tmp_path / name, 5.0) for name in "abc"]
    write_compile_log(path, runs)
    assert read_compile_log(path) == runs[1:]


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"format": 0, "runs": []}', '{"format": 1, "runs": [{"folder": "a"}]}', '{"format": 1, "runs": [1]}'],
)
def test_a_broken_log_counts_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "here.json"
    assert read_compile_log(path) == []
    path.write_text(text)
    assert read_compile_log(path) == []
