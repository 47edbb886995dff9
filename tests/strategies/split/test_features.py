"""Feature rows of own nodes for each batch: the right ones, from the device where they are kept, and counted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from engine.own_features import COLUMNS, NODES, as_dense, batch, blocks, dense, known_to, sparse
from outgrow.core.ledger import Ledger
from outgrow.nn.layer import Features
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.strategies.split.features import OwnFeatureStore

BATCHES = 6
OWNER = torch.arange(NODES) % 3
KEPT = {
    "no cache": None,
    "empty": torch.empty(0, dtype=torch.int64),
    "some": torch.tensor([9, 30, 0, 3, 21]),
    "all": torch.arange(0, NODES, 3).flip(0),
}
FEATURES: dict[str, tuple[Features, torch.dtype]] = {
    "dense": (dense(), torch.float32),
    "widened": (dense(), torch.float64),
    "narrowed": (dense(torch.float64), torch.float32),
    "half": (dense(torch.float16), torch.float16),
    "half-as-float": (dense(torch.float16), torch.float32),
    "bfloat": (dense(torch.bfloat16), torch.bfloat16),
    "sparse": (sparse(), torch.float64),
    "sparse-as-it-is": (sparse(), torch.float32),
    "blocks": (blocks(), torch.float64),
}
every_kind = pytest.mark.parametrize("kind", FEATURES)
every_cache = pytest.mark.parametrize("kept", KEPT)


def own(number: int) -> Tensor:
    """Own nodes of a batch: some, all or none."""
    nodes = batch(0, number)
    return nodes[OWNER[nodes] == 0]


def rows_of(kind: str, kept: str, ledger: Ledger | None = None) -> OwnFeatureStore:
    """Those of a worker that knows the rows of its own nodes only."""
    features, dtype = FEATURES[kind]
    return OwnFeatureStore(SingleProcessComm(ledger), known_to(features, OWNER, 0), dtype, KEPT[kept])


def require_rows(found: Features, kind: str, nodes: Tensor) -> None:
    features, dtype = FEATURES[kind]
    assert isinstance(found, type(features))
    assert found.dtype == dtype
    assert len(found) == len(nodes)
    assert torch.equal(as_dense(found).double(), as_dense(features)[nodes].to(dtype).double())


@every_kind
@every_cache
def test_rows_come_in_the_order_of_the_nodes(kind: str, kept: str) -> None:
    rows = rows_of(kind, kept)
    batches = [own(number) for number in range(BATCHES)]
    assert {0, NODES // 3 + 1} <= {*map(len, batches)}
    for nodes in batches:
        require_rows(rows.send_request(rows.prepare_request(nodes)).wait(), kind, nodes)


@every_kind
def test_batches_are_found_by_another_thread(kind: str) -> None:
    rows, batches = rows_of(kind, "some"), [own(number) for number in range(BATCHES)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(rows.prepare_request, batches))
    brought = [rows.send_request(each).wait() for each in found]
    for each, nodes in zip(brought, batches, strict=True):
        require_rows(each, kind, nodes)


@every_cache
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_rows_are_counted_when_they_are_brought(kind: str, kept: str) -> None:
    ledger = Ledger()
    rows, nodes, at_hand = rows_of(kind, kept, ledger), own(1), KEPT[kept]
    found = rows.prepare_request(nodes)
    assert not ledger.counters
    rows.send_request(found).wait()
    expected = {"rows_loaded": len(nodes)}
    if at_hand is not None:
        hits = len({*at_hand.tolist()} & {*nodes.tolist()})
        expected |= {"cache_hits": hits, "cache_misses": len(nodes) - hits}
    assert ledger.counters == expected
    assert not ledger.bytes_by_link  # nothing leaves the worker's memory
    rows.send_request(rows.prepare_request(nodes[:1])).wait()
    assert ledger.counters["rows_loaded"] == len(nodes) + 1


def test_rows_that_are_kept_are_read_once() -> None:
    features, kept = dense().clone(), KEPT["some"]
    rows = OwnFeatureStore(SingleProcessComm(), features, torch.float32, kept)
    assert kept is not None
    features[kept] = torch.nan
    brought = rows.send_request(rows.prepare_request(torch.arange(NODES))).wait()
    assert torch.equal(as_dense(brought), dense())
    assert rows.prepare_request(kept).num_on_device == len(kept)
    assert rows.prepare_request(kept).num_rows == 0


def test_rows_of_one_batch_stay_when_the_next_one_comes() -> None:
    rows = rows_of("dense", "some")
    first = rows.send_request(rows.prepare_request(own(1))).wait()
    rows.send_request(rows.prepare_request(own(2))).wait()
    require_rows(first, "dense", own(1))


def test_sparse_rows_stay_sparse() -> None:
    rows = rows_of("sparse", "all")
    brought = rows.send_request(rows.prepare_request(own(1))).wait()
    assert isinstance(brought, SparseRows)
    assert brought.num_columns == COLUMNS
