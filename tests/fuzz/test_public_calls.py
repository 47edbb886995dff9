"""Wrong arguments of public functions end in an `InputError`, whatever they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from public_calls import Call, draw_call, judge, list_calls

import outgrow as og

FEW, MANY = 400, 10_000


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Call]]:
    monkeypatch.chdir(tmp_path)  # a drawn ``out`` is relative to it
    threads = torch.get_num_threads()
    yield list_calls(tmp_path)
    torch.set_num_threads(threads)


def test_the_calls_that_are_made_wrong_were_right(calls: list[Call]) -> None:
    for call in calls:
        call.function(*call.positional, **call.named)


def test_every_public_class_and_function_of_models_and_strategies_is_called(calls: list[Call]) -> None:
    called = {call.function for call in calls}
    # What a user writes subclasses of, or only gets.
    given = {"Block", "Conv", "ConvSpec", "Decoder", "Encoder", "NodeMessages", "PyGConv"}
    given |= {"EdgeDecoder", "ProductDecoder", "QueryDecoder"}
    phases = {"DotProductAttention", "DynamicAttention", "FeatureWeightedSum", "GineSum"}
    phases |= {"Film", "Gated", "Max", "RelationScale", "WeightedSum", "destination", "mean_weight", "symmetric_weight"}
    # Former names stay in the module once they were asked for.
    names = [name for name in dir(og.nn) if getattr(og.nn, name).__name__ == name]
    assert {name for name in names if getattr(og.nn, name) not in called} == given | phases
    # What a user gets or derives from; `launch` calls what it is given, and `load_run` needs the files of a run.
    results = {"Callback", "PlanReport", "Run", "TopLinks", "Training", "launch", "load_run"}
    public = {name for name in og.__all__ if callable(getattr(og, name))}
    errors = {name for name in public if name.endswith(("Error", "Warning"))}
    assert {name for name in public if getattr(og, name) not in called} == results | errors


@pytest.mark.parametrize("number", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_only_input_errors_come_out(number: int, calls: list[Call]) -> None:
    wrong = {}
    for seed in range(number):
        call = draw_call(calls, seed)
        if (error := judge(call)) is not None:
            wrong[seed] = (call.function, error)
    assert not wrong


def test_a_drawn_call_depends_on_its_seed_alone(calls: list[Call]) -> None:
    def show(seed: int) -> str:
        call = draw_call(calls, seed)
        return f"{call.function} {list(map(type, call.positional))} {sorted(call.named)}"

    assert [show(seed) for seed in range(50)] == [show(seed) for seed in reversed(range(50))][::-1]
