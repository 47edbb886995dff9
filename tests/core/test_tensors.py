"""All tensors of a value are found, however deep they are."""

from __future__ import annotations

import torch

from outgrow.core.tensors import iterate_tensors
from outgrow.graph.topology import Topology
from support import sparse_rows

TRIANGLE = Topology(indptr=torch.arange(4), indices=torch.tensor([2, 0, 1], dtype=torch.int32))


def test_all_tensors_of_a_block_and_of_rows() -> None:
    block = TRIANGLE.block
    found = {id(tensor) for tensor in iterate_tensors([block, torch.ones(3, 2)])}
    expected = [block.src_nodes, block.dst_nodes, block.src_degree, block.edges.indptr, block.edges.indices]
    assert found >= {id(tensor) for tensor in expected}
    rows = sparse_rows(torch.eye(3), least=0.5)
    assert {id(tensor) for tensor in iterate_tensors(rows)} >= {id(rows.indptr), id(rows.indices), id(rows.values)}
    assert list(iterate_tensors({"a": (1, None), "b": "text"})) == []
