"""What `reuse=aggregate` takes: sums of sparse features, maxima of raw ones; and what it refuses, and why."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from outgrow.core.errors import InputError
from outgrow.engine.batches import BatchConfig
from outgrow.nn import GCN, SAGE, Conv, ConvSpec, Layer, NodeMessages, SAGEConv
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops.aggregation.max import Max
from outgrow.ops.sparse import SparseRows, sum_sparse_rows
from outgrow.strategies.orchestrate import sparse_aggregates
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from planted import NODES, WIDTH
from suites.cases import Case, features_of
from suites.orchestrated import problem_of, trained

WHOLE = BatchConfig(size=4, fanout=(3, -1))
AGGREGATES = Orchestrate(reuse="aggregate", hot_ratio=0.3, super_batch=2)


class RawMaxConv(Conv):
    """``x'_v = (max over in-edges (u, v) of x_u) W``: no parameters before the maximum."""

    reads_weights = False
    accepts_sparse = False

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.project = nn.Linear(in_features, out_features)
        self.aggregation = Max()
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(1, in_features),
            aggregate=(1, in_features),
            static_edge_weight=True,
            reads_target=False,
            source_is_input=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        assert isinstance(x_VD, Tensor)
        return NodeMessages(x_VD[:, None], None)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        found: Tensor = self.project(aggregate_VCF[:, 0])
        return found


def raw_max() -> Model:
    torch.manual_seed(3)
    return Model([Layer(RawMaxConv(WIDTH, 8)), Layer(SAGEConv(8, 2))]).double()


def test_maxima_of_raw_features_are_reused() -> None:
    """With whole neighbourhoods it trains as `sampled` does."""
    expected, shaken = (
        trained(problem_of(raw_max(), batches=WHOLE), Sampled(), shaken=noisy) for noisy in (False, True)
    )
    problem = problem_of(raw_max(), batches=WHOLE)
    assert trained(problem, AGGREGATES).is_close(expected, shaken)
    assert problem.shard.comm.ledger.counters["cache_hits"] > 0


def test_aggregates_of_sparse_features_are_those_of_dense_ones() -> None:
    """In batches with few neighbours too; and the layer's own input stays sparse."""
    found = []
    for is_sparse in (False, True):
        torch.manual_seed(3)
        layers = Layer(SAGEConv(WIDTH, WIDTH, project_first=True)), Layer(SAGEConv(WIDTH, 2))
        problem = problem_of(Model(layers).double())
        assert isinstance(problem.features, Tensor)
        dense = problem.features * (torch.arange(NODES * WIDTH).view(NODES, WIDTH) % 3 > 0)
        features = sparse_of(dense) if is_sparse else dense
        found.append(trained(replace(problem, features=features), AGGREGATES))
        assert problem.shard.comm.ledger.counters["cache_hits"] > 0
    assert found[1].difference(found[0]) < 1e-10


def sparse_of(dense: Tensor) -> SparseRows:
    row, column = dense.nonzero(as_tuple=True)
    ends = torch.searchsorted(row, torch.arange(len(dense) + 1))
    return SparseRows(
        indptr=ends, indices=column.to(torch.int32), values=dense[row, column], num_columns=dense.shape[1]
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_rows_are_summed_over_edges(weighted: bool) -> None:
    torch.manual_seed(0)
    dense = torch.randn(20, 6, dtype=torch.float64) * (torch.rand(20, 6) < 0.3)
    indptr, indices = torch.tensor([0, 3, 3, 10, 12]), torch.randint(20, (12,))
    weight = torch.rand(12, dtype=torch.float64) if weighted else None
    out = torch.full((4, 6), torch.nan, dtype=torch.float64)
    sum_sparse_rows(indptr, indices, weight, sparse_of(dense), out)
    scaled = dense[indices] * (1.0 if weight is None else weight[:, None])
    expected = torch.zeros(4, 6, dtype=torch.float64)
    expected.index_add_(0, torch.repeat_interleave(torch.arange(4), indptr.diff()), scaled)
    torch.testing.assert_close(out, expected)


def test_sums_of_sparse_features_must_be_few() -> None:
    """They are dense: a limit on their bytes is checked before anything is computed."""
    problem = problem_of(GCN(WIDTH, 8, 2, sparse_input=True).double())
    assert isinstance(problem.features, Tensor)
    features = sparse_of(problem.features)
    problem = replace(problem, features=features)
    num_bytes = round(0.3 * NODES) * WIDTH * 8
    with patch.object(sparse_aggregates, "MAX_BYTES", num_bytes):
        AGGREGATES.prepare(problem).close()
    with patch.object(sparse_aggregates, "MAX_BYTES", num_bytes - 1):
        with pytest.raises(InputError, match="too large to be reused") as caught:
            AGGREGATES.prepare(problem)
        AGGREGATES.prepare(replace(problem, features=features.to_dense())).close()
    assert f"{num_bytes:,} bytes for {round(0.3 * NODES)} hot nodes" in caught.value.got
    assert f"{round(0.3 * NODES) - 1} hot nodes" in caught.value.needed
    assert "hot_ratio" in caught.value.repair


def test_features_in_blocks_are_refused() -> None:
    """Columns of each block are those of another matrix; embeddings of them are reused as ever."""
    model = GCN(6, 8, 2, sparse_input=True)
    blocks, sparse = (features_of(Case("gcn", features=form), 9) for form in ("blocks", "sparse"))
    with pytest.raises(InputError, match="aggregates of these features") as caught:
        AGGREGATES.bottom_layer(model, blocks)
    assert "BlockRows of 6 columns" in caught.value.got
    assert caught.value.needed
    assert caught.value.repair
    assert AGGREGATES.bottom_layer(model, sparse).spec.source_is_input
    assert Orchestrate().bottom_layer(model, sparse) is model.layers_list()[0]
    assert Orchestrate().bottom_layer(model, torch.zeros(9, 6)).spec.source_is_input


def test_a_maximum_of_projected_rows_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError) as caught:
        AGGREGATES.validate_model(SAGE(8, 16, 2, pool="max"))
    assert "SAGEMaxConv" in caught.value.got
    assert "maxima of projected rows" in caught.value.needed
