"""Features of which a worker knows only the rows of its host, and batches that workers ask for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outgrow.nn.layer import Features
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.sparse import SparseRows
from support import normal

NODES, COLUMNS = 40, 5


def dense(dtype: torch.dtype = torch.float32) -> Tensor:
    """The features of all nodes."""
    return normal(NODES, COLUMNS).to(dtype)


def sparse(dtype: torch.dtype = torch.float32) -> SparseRows:
    """Row ``v`` stores ``v % 4`` values."""
    sizes = torch.arange(NODES) % 4
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    columns = [torch.arange(int(size), dtype=torch.int32) + 1 for size in sizes]
    values = normal(int(ends[-1])).to(dtype)
    return SparseRows(indptr=ends, indices=torch.cat(columns), values=values, num_columns=COLUMNS)


def blocks(dtype: torch.dtype = torch.float32) -> BlockRows:
    """Two blocks; the last rows are empty."""
    middle, end = NODES // 3, NODES - 5
    parts = normal(middle, 2).to(dtype), normal(end - middle, COLUMNS - 2, seed=1).to(dtype)
    return BlockRows(blocks=parts, rows=(slice(0, middle), slice(middle, end)), num_rows=NODES)


def known_to(features: Features, owner: Tensor, ranks: list[int]) -> Features:
    """The same features as a worker of a host may read them: of nodes that none of its workers owns nothing but NaN."""
    theirs = ~torch.isin(owner.long(), torch.tensor(ranks))
    if isinstance(features, SparseRows):
        return features.with_values(
            torch.where(theirs.repeat_interleave(features.indptr.diff()), torch.nan, features.values)
        )
    if isinstance(features, BlockRows):
        pairs = zip(features.blocks, features.rows, strict=True)
        return features.with_blocks([torch.where(theirs[rows, None], torch.nan, block) for block, rows in pairs])
    return torch.where(theirs[:, None], torch.nan, features)


def batch(rank: int, number: int) -> Tensor:
    """Nodes that a worker asks for: some, none, all or its neighbour's; those of all workers overlap."""
    random = np.random.default_rng([rank, number])
    if number % 4 == 1:
        return torch.from_numpy(random.permutation(NODES))
    count = 0 if (rank + number) % 3 == 0 else int(random.integers(1, NODES))
    return torch.from_numpy(random.choice(NODES, count, replace=False))


def as_dense(features: Features | None) -> Tensor:
    """All numbers of dense or sparse features, which are there."""
    assert features is not None
    if isinstance(features, Tensor):
        return features
    return features.to(torch.float64) @ torch.eye(COLUMNS, dtype=torch.float64)
