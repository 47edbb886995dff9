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
    store.fill_cache(CACHED, NODES)
    request = store.prepare_request(nodes)
    assert (request.num_on_device, request.num_rows) == (hits, len(nodes) - hits)
    assert torch.equal(got(store, nodes), expected)
    assert crossings.sizes == [len(nodes), len(CACHED), len(nodes) - hits]


def test_another_cache_takes_the_place_of_the_one_before() -> None:
    local = LocalFeatureStore(dense(), torch.float32)
    wrong = DeviceCache(torch.full_like(dense()[CACHED], torch.nan), CACHED, NODES)
    store = CachedFeatureStore(local, lambda rows: rows, wrong)
    assert got(store, CACHED).isnan().all()
    store.fill_cache(CACHED[:2], NODES)
    assert store.prepare_request(CACHED).num_on_device == 2
    assert torch.equal(got(store, CACHED), dense()[CACHED])
