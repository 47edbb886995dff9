"""Which device a worker computes on, and what it says of it. What needs a GPU is marked."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.runtime.storage.row_storage import allocate_pinned_rows
from outgrow.runtime.system import device
from outgrow.runtime.system.device import (
    CPU,
    DevicePeakMemory,
    DeviceStreams,
    choose_device,
    free_device_bytes,
    to_host,
    use_device,
    used_device_bytes,
)


def line(hosts: Sequence[str], gpus: Sequence[int], rank: int = 0) -> Comm:
    comm = SingleProcessComm()
    comm.rank, comm.size, comm.hosts, comm.gpu_counts = rank, len(hosts), tuple(hosts), tuple(gpus)
    return comm


@pytest.mark.parametrize("asked", ["auto", "cpu"])
@pytest.mark.parametrize("gpus", [[0, 0, 4], [1, 1, 4]])
def test_too_few_devices_mean_the_cpu_for_all(asked: str, gpus: list[int]) -> None:
    assert choose_device(asked, line(["a", "a", "b"], gpus, rank=2)) == CPU


def test_devices_that_are_asked_for_must_be_there() -> None:
    with pytest.raises(InputError, match="2 CUDA devices"):
        choose_device("cuda", line(["a", "a", "b"], [1, 1, 4]))


def test_cpu_is_cpu_although_there_are_devices() -> None:
    assert choose_device("cpu", line(["a"], [8])) == CPU


@pytest.mark.parametrize(("rank", "index"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_workers_of_a_host_have_devices_of_their_own(rank: int, index: int) -> None:
    workers = line(["a", "b", "a", "b"], [2, 3, 2, 3], rank=rank)
    with patch("torch.cuda.set_device") as chosen, patch("importlib.import_module") as imported:
        assert choose_device("cuda", workers) == torch.device("cuda", index)
        with patch.object(device, "VALIDATED_DEVICES", new=4):
            assert choose_device("auto", workers) == torch.device("cuda", index)
    assert [call.args for call in chosen.call_args_list] == [(index,)] * 2
    assert [call.args for call in imported.call_args_list] == [("outgrow.ops.gpu",)] * 2


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_who_does_not_ask_for_what_was_never_tried_does_not_get_it(workers: int) -> None:
    with patch("torch.cuda.set_device"), patch("importlib.import_module"), patch("importlib.util.find_spec"):
        chosen = choose_device("auto", line(["a"] * workers, [8] * workers))
    assert chosen == (torch.device("cuda", 0) if workers == 1 else CPU)


def test_who_has_no_triton_does_not_get_what_needs_it() -> None:
    with patch("importlib.util.find_spec", return_value=None):
        assert choose_device("auto", line(["a"], [1])) == CPU


@pytest.mark.parametrize("place", ["meta", "cpu"])
def test_devices_connect_before_rows_are_sent(place: str) -> None:
    workers = line(["a", "a"], [2, 2])
    with (
        patch.object(device, "choose_device", return_value=torch.device(place)),
        patch.object(workers, "all_reduce") as summed,
    ):
        use_device("cuda", workers)
    assert workers.device.type == place
    assert [call.args[0].device.type for call in summed.call_args_list] == ["meta"] * (place == "meta")


def test_on_a_cpu_nothing_moves_and_nobody_waits() -> None:
    streams, values = DeviceStreams(CPU), torch.ones(3)
    with streams.on_load_stream(), streams.on_store_stream(streams.record_event()):
        assert to_host(values) is values
    streams.synchronize()
    assert not streams.asynchronous
    assert DevicePeakMemory(CPU).peak_bytes == 0
    assert used_device_bytes(CPU) > 1 << 20
    assert free_device_bytes(CPU) > 0


def test_pinned_rows_are_rows_of_memory() -> None:
    rows, values = allocate_pinned_rows(5, 2, torch.float64, CPU), torch.rand(3, 2, dtype=torch.float64)
    rows.write_range(1, values)
    rows.add_rows(torch.tensor([1, 3]), values, torch.tensor([2, 0]))
    out, piece = (torch.zeros(count, 2, dtype=torch.float64) for count in (4, 2))
    rows.read_rows(torch.tensor([0, 1]), out, torch.tensor([3, 2]))
    rows.read_range(3, 5, piece)
    assert torch.equal(out[2], values[0] + values[2])
    assert torch.equal(piece[0], values[2] + values[0])
    assert not out[[0, 1, 3]].any()
    assert not piece[1].any()
    for wrong in (
        lambda: rows.read_range(4, 6, piece),
        lambda: rows.read_rows(torch.tensor([5]), out, torch.tensor([0])),
    ):
        with pytest.raises(ValueError, match="of 5"):
            wrong()
    with pytest.raises(TypeError):
        rows.read_range(0, 2, piece.float())
    rows.close()


@pytest.mark.gpu
def test_streams_and_pinned_rows_of_a_device() -> None:
    place = choose_device("cuda", SingleProcessComm())
    streams, rows = DeviceStreams(place), allocate_pinned_rows(1000, 8, torch.float32, place)
    values = torch.rand(1000, 8, device=place)
    with streams.on_store_stream(streams.record_event()):
        rows.write_range(0, values)
    out = torch.zeros(3, 8, device=place)
    at = torch.tensor([999, 3, 5], device=place)
    with streams.on_load_stream():
        rows.read_rows(at, out, torch.arange(3, device=place))
    assert torch.equal(out, values[at])
    assert torch.equal(to_host(values), values.cpu())
    assert used_device_bytes(place) <= DevicePeakMemory(place).peak_bytes
    rows.close()
