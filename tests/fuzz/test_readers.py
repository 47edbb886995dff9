"""A short run of the fuzzer for each reader, and that it would notice a reader which is broken."""

import json
from pathlib import Path
from random import Random

import pytest
import store_files
from broken_readers import MUTANTS
from cases import ACCEPTED, Case
from keeper import Keeper
from readers import READERS, Inputs, kind_of, main

CASE = Case(main="e.csv", files={"e.csv": b"0 1\n1 2\n"}, expected=ACCEPTED, note="an edge list")
_MUTATED = 60


@pytest.mark.timeout(300)
@pytest.mark.parametrize("reader", READERS)
def test_readers_keep_their_promises(reader: str, tmp_path: Path) -> None:
    """All inputs that somebody has thought of are left to longer runs, but for every seventh."""
    inputs = Inputs(kind_of(reader), f"3/{reader}")
    known = len(inputs)
    numbers = [*range(len(inputs.seeds)), *range(len(inputs.seeds), known, 7), *range(known, known + _MUTATED)]
    keeper = Keeper(reader, tmp_path, inputs.seeds, 60)
    try:
        wrong = {
            number: (case.note, verdict)
            for number in numbers
            if (verdict := keeper.judge(case := inputs[number], convert=number % 3 == 0)).violations
        }
    finally:
        keeper.close()
    assert not wrong


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_reader_is_noticed(mutant: str, tmp_path: Path) -> None:
    keeper = Keeper(f"broken_readers:{mutant}", tmp_path, [], 1 if mutant == "hangs" else 60)
    try:
        wrong = keeper.judge(CASE, convert=True).violations
    finally:
        keeper.close()
    assert any(MUTANTS[mutant].violation in what for what in wrong), wrong


def test_inputs_depend_on_seed_and_number_alone() -> None:
    one, other, third = (Inputs(kind_of("edge_list"), name) for name in ("1/edge_list", "1/edge_list", "2/edge_list"))
    some = range(len(one), len(one) + 30)
    assert [one[number] for number in some] == [other[number] for number in reversed(some)][::-1]
    assert [one[number] for number in some] != [third[number] for number in some]


def test_changes_of_a_manifest_leave_the_values_that_are_drawn() -> None:
    """Else later inputs depend on earlier ones, until a value holds itself and cannot be written."""
    odd, draw = repr(store_files._ODD), Random(0)
    record = {"a": 1, "b": [1, 2]}
    for _ in range(500):
        store_files._change(draw, record)
        record = {"a": 1, "b": [1, 2], **record}
        store_files.sealed(record)
    assert repr(store_files._ODD) == odd


def test_the_script_keeps_what_was_not_as_promised(tmp_path: Path) -> None:
    words = ["--reader", "edge_list", "--inputs", "2", "--target", "broken_readers:raises"]
    kept = tmp_path / "kept"
    assert main([*words, "--failures", str(kept), "--json", str(tmp_path / "out.json")]) == 1
    (row,) = json.loads((tmp_path / "out.json").read_text())["readers"]
    assert (row["inputs"], row["accepted"], row["not_as_promised"]) == (2, 0, 2)
    known = json.loads((kept / "edge_list-0-0" / "case.json").read_text())
    assert "--reader edge_list --seed 0 --only 0" in known["again"]
    assert (kept / "edge_list-0-0" / "input" / "e.csv").is_file()
