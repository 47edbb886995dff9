"""Partitions as records: what is accepted, and the nodes of parts and chunks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outgrow.core.errors import InputError
from outgrow.graph.partition.partition import Partition


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(1, 3))
def test_every_node_is_in_one_part_and_one_chunk(parts: list[int], num_chunks: int) -> None:
    chunk = torch.arange(len(parts)) % num_chunks
    made = Partition.from_assignment(torch.tensor(parts), 5, allow_empty=True, chunk=chunk, num_chunks=num_chunks)
    for p in range(5):
        assert made.nodes_of_part(p).dtype == torch.int64
        assert made.nodes_of_part(p).tolist() == [v for v, part in enumerate(parts) if part == p]
        assert int(made.part_sizes[p]) == parts.count(p)
        for c in range(num_chunks):
            expected = [v for v, part in enumerate(parts) if part == p and v % num_chunks == c]
            assert made.chunks_as_parts.nodes_of_part(p * num_chunks + c).tolist() == expected


def test_parts_are_as_narrow_as_they_can_be() -> None:
    nodes = torch.arange(1 << 15)
    assert Partition.from_assignment(nodes, 1 << 15).part.dtype == torch.int16
    more = Partition.from_assignment(torch.arange((1 << 15) + 1), (1 << 15) + 1).part
    assert more.dtype == torch.int32
    assert int(more[-1]) == 1 << 15


def test_without_chunks_a_part_is_its_own_chunk() -> None:
    made = Partition.from_assignment(torch.tensor([1, 0, 1]), 2)
    assert made.chunks_as_parts is made
    assert made.chunks_as_parts.nodes_of_part(1).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("part", "num_parts", "words"),
    [
        (torch.tensor([0, 2]), 2, "parts 0 to 2"),
        (torch.tensor([0, -1]), 2, "parts -1 to 0"),
        (torch.tensor([0, 40_000]), 2, "40,000"),
        (torch.tensor([0, 65_536]), 1, "65,536"),
        (torch.tensor([0.0, 1.0]), 2, "float"),
        (torch.tensor([True, False]), 2, "bool"),
        (torch.tensor([[0, 1]]), 2, "[1, 2]"),
        (torch.tensor([0, 0]), 0, "1 to"),
        (torch.tensor([0, 2, 2]), 3, "none in part 1"),
    ],
)
def test_what_is_no_partition_is_refused(part: torch.Tensor, num_parts: int, words: str) -> None:
    with pytest.raises(InputError, match="no partition") as caught:
        Partition.from_assignment(part, num_parts)
    assert words in str(caught.value)


def test_an_empty_part_is_taken_where_it_is_asked_for() -> None:
    made = Partition.from_assignment(torch.tensor([0, 2, 2]), 4, allow_empty=True)
    assert [len(made.nodes_of_part(p)) for p in range(4)] == [1, 0, 2, 0]


@pytest.mark.parametrize("chunk", [torch.tensor([0, 0]), torch.tensor([0, 0, 2]), torch.tensor([0, -1, 0])])
def test_wrong_chunks_are_refused(chunk: torch.Tensor) -> None:
    with pytest.raises(InputError, match="no partition"):
        Partition.from_assignment(torch.tensor([0, 1, 1]), 2, chunk=chunk, num_chunks=2)
