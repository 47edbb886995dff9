"""Stores that stand on one another: rows in memory, and those of which some are kept on the device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.own_features import NODES, as_dense, batch, blocks, dense, sparse
from outgrow.engine.features.cache import DeviceCache
from outgrow.engine.features.store import CachedFeatureStore, FeatureStore, LocalFeatureStore
from outgrow.nn.layer import Features

every_kind = pytest.mark.parametrize("features", [dense(), sparse(), blocks()], ids=["dense", "sparse", "blocks"])
CACHED = torch.tensor([9, 30, 0, 3, 21])


class Crossings:
    """Rows that were brought to the device, by how many at once."""

    def __init__(self) -> None:
        self.sizes = list[int]()

    def to_device(self, rows: Features) -> Features:
        self.sizes.append(len(rows))
        return rows


def got(store: FeatureStore, nodes: Tensor) -> Tensor:
    return as_dense(store.send_request(store.prepare_request(nodes)).wait())


@every_kind
def test_a_local_store_reads_rows_in_order_and_type(features: Features) -> None:
    store = LocalFeatureStore(features, torch.float64)
    for number in range(4):
        nodes = batch(0, number)
        assert torch.equal(got(store, nodes), as_dense(features)[nodes].double())
        assert store.prepare_request(nodes).num_rows == len(nodes)


@every_kind
def test_only_rows_that_are_not_kept_cross(features: Features) -> None:
    crossings, local = Crossings(), LocalFeatureStore(features, torch.float64)
    store = CachedFeatureStore(local, crossings.to_device)
    assert store.dtype == torch.float64
    nodes = batch(0, 1)
    expected, hits = as_dense(features)[nodes].double(), int(torch.isin(nodes, CACHED).sum())
    assert hits > 0
    assert torch.equal(got(store, nodes), expected)
    store.extend_cache(CACHED, NODES)
    request = store.prepare_request(nodes)
    assert (request.num_on_device, request.num_rows) == (hits, len(nodes) - hits)
    assert torch.equal(got(store, nodes), expected)
    assert crossings.sizes == [len(nodes), len(CACHED), len(nodes) - hits]


@every_kind
def test_a_cache_grows_while_requests_are_pending(features: Features) -> None:
    crossings, local = Crossings(), LocalFeatureStore(features, torch.float32)
    store = CachedFeatureStore(local, crossings.to_device)
    nodes = batch(0, 1)
    expected = as_dense(features)[nodes]
    prepared = [store.prepare_request(nodes)]
    for part in (CACHED[:2], CACHED[:0], CACHED[2:]):
        store.extend_cache(part, NODES)
        prepared.append(store.prepare_request(nodes))
    on_device = [int(torch.isin(nodes, CACHED[:size]).sum()) for size in (0, 2, 2, 5)]
    assert [each.num_on_device for each in prepared] == on_device
    assert on_device[-1] > on_device[1]
    assert crossings.sizes == [2, 3]
    assert all(torch.equal(as_dense(store.send_request(each).wait()), expected) for each in prepared)


def test_cached_rows_are_those_that_are_kept() -> None:
    local = LocalFeatureStore(dense(), torch.float32)
    wrong = DeviceCache(torch.full_like(dense()[CACHED], torch.nan), CACHED, NODES)
    assert got(CachedFeatureStore(local, lambda rows: rows, wrong), CACHED).isnan().all()
