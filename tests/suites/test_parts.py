"""Workers that have the features of their own nodes alone train and infer as those that have all, to the last bit."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from hosts import on_hosts, spread_over
from outgrow.core.errors import InputError
from outgrow.engine.features import remote
from outgrow.runtime.distributed.worker import WorkerContext
from pool import run_workers
from suites.parts import CASES, WAYS, Seen, train_both, write_parts

WORKERS = 3


def on_two_hosts(place: WorkerContext, folder: Path) -> dict[tuple[str, int], tuple[Seen, Seen]]:
    with on_hosts(place.comm, spread_over(place.comm, 2)):
        return train_both(place, folder)


def test_a_part_is_enough(tmp_path: Path) -> None:
    write_parts(tmp_path, WORKERS)
    for found in run_workers(partial(on_two_hosts, folder=tmp_path), WORKERS):
        assert len(found) == len(WAYS) * len(CASES)
        for key, (whole, part) in found.items():
            assert whole.gradient.same_bits(part.gradient), key
            assert whole.gradient.loss > 0
            assert all(torch.equal(whole.outputs[mode], part.outputs[mode]) for mode in whole.outputs), key


def all_rows_are_taken_to_be_there() -> AbstractContextManager[object]:
    """Workers of one host read each other's rows, as they do where each has all."""
    return patch.object(remote, "has_all_rows", lambda rows: True)


MUTANTS = {"all_rows_are_taken_to_be_there": all_rows_are_taken_to_be_there}


def read_what_is_not_there(place: WorkerContext, folder: Path, name: str) -> str:
    with MUTANTS[name]():
        try:
            train_both(place, folder)
        except InputError as error:
            return str(error)
    return "garbage"


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_rows_that_are_not_there_are_never_read(tmp_path: Path, name: str) -> None:
    write_parts(tmp_path, 2)
    for told in run_workers(partial(read_what_is_not_there, folder=tmp_path, name=name), 2):
        assert "are not here" in told
