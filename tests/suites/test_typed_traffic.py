"""The ledgers of `split` and `offload` are formulas over node types, to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import pytest

from outgrow.core.ledger import Kind
from outgrow.nn.layer import Layer
from outgrow.strategies.offload.wave_buffer import GradientBuffer
from suites.offload_traffic import Bytes
from suites.typed import TypedCase, model_of
from suites.typed_traffic import (
    CONVS,
    Moved,
    moved_in_chunks,
    numbers_of,
    offload_bytes,
    sent_in_batches,
    split_bytes,
)
from thread_group import run_in_threads

CASES = [TypedCase(conv, graph) for conv, graph in zip(CONVS, ["types", "weighted"] * len(CONVS), strict=False)]
CHUNKS = 3
WORKERS = pytest.mark.parametrize(
    "workers", [3, *(pytest.param(workers, marks=pytest.mark.slow) for workers in (1, 2, 4))]
)


@cache
def sent(workers: int) -> dict[TypedCase, Counter[Kind]]:
    """What all workers together send in an epoch of `split`."""
    found = run_in_threads(partial(sent_in_batches, cases=CASES), workers)
    return {case: sum((each[case] for each in found), Counter()) for case in CASES}


@cache
def moved(workers: int) -> list[dict[TypedCase, Moved]]:
    """What each worker moves in an epoch of `offload`."""
    return list(run_in_threads(partial(moved_in_chunks, cases=CASES, chunks=CHUNKS), workers))


def total(case: TypedCase, workers: int) -> Bytes:
    return sum((each[case].epoch for each in moved(workers)), Counter())


@WORKERS
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.conv)
def test_all_bytes_of_split(case: TypedCase, workers: int) -> None:
    assert sent(workers)[case] == split_bytes(case, workers)


@WORKERS
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.conv)
def test_all_bytes_of_offload(case: TypedCase, workers: int) -> None:
    assert total(case, workers) == offload_bytes(case, [each[case].chunks for each in moved(workers)])


def test_some_types_need_less_than_others() -> None:
    numbers, width = numbers_of(model_of(TypedCase("mixed")).layers_list()[0])
    assert max(numbers.used) == width > min(each for each in numbers.used if each)


@contextmanager
def whole_rows_cross() -> Iterator[None]:
    """Rows of all types cross as wide as those of the widest type; results stay right."""
    with patch.object(Layer, "row_widths", lambda layer: None):
        yield


@contextmanager
def gradients_of_whole_rows_cross() -> Iterator[None]:
    """The gradients of rows of all types cross as wide as those of the widest type; results stay right."""
    make = GradientBuffer.__init__

    def forget_widths(buffer: GradientBuffer, *given: Any, **options: Any) -> None:
        # The sixth argument is the widths.
        make(buffer, *given[:5], None, *given[6:], **{**options, **({"widths": None} if "widths" in options else {})})

    with patch.object(GradientBuffer, "__init__", forget_widths):
        yield


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each for each in (whole_rows_cross, gradients_of_whole_rows_cross)
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    case = TypedCase("mixed")
    with MUTANTS[name]():
        batches = run_in_threads(partial(sent_in_batches, cases=[case]), 3)
        chunked = run_in_threads(partial(moved_in_chunks, cases=[case], chunks=CHUNKS), 3)
    found = sum((each[case].epoch for each in chunked), Counter())
    assert found != offload_bytes(case, [each[case].chunks for each in chunked])
    of_split = sum((each[case] for each in batches), Counter()) != split_bytes(case, 3)
    assert of_split == (name == "whole_rows_cross")
