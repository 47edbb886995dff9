"""What the figures of migrate.py rest on: counts that are right by hand and in training, and rivals that train."""

import json
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import migrate_counts
import pytest
import torch
from migrate_counts import (
    ELIDED,
    LOCAL,
    MODEL_CENTRIC,
    NAIVE,
    NAIVE_CARRIED,
    P3,
    PREGATHERED,
    TRAVEL,
    Workers,
    carried,
    counted,
    dressed,
    local_shuffles,
    model_of,
    naive,
    of_models,
    priced,
    sources_at,
    travelling,
)
from migrate_local import (
    Deal,
    beside,
    difference,
    locality,
    longest,
    longest_at_random,
    merged_into,
    reaching,
    seeds_met,
)
from rivals import p3
from rivals.micro_batches import LocalShuffles, ModelCentric, local_batches
from split_counts import Setting

import outgrow as og
from outgrow.graph.graph import Graph, Split
from outgrow.graph.sampling.edge_sampler import FASTGCN
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.strategies.base import Strategy
from outgrow.strategies.migrate.strategy import Migrate
from support import topology_of

NODES, PARTS, BATCH = 240, 4, 50
HOMES = torch.tensor([0, 0, 0, 1, 1, 1])


def circle() -> Graph:
    """A circle with chords in both directions, so that every node has edges from it and to it."""
    pairs = [(v, (v + step * sign) % NODES) for v in range(NODES) for step in (1, 5, 31) for sign in (1, -1)]
    nodes = torch.arange(NODES)
    split = Split(train=nodes[::2], val=nodes[1::4], test=nodes[3::4])
    features = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(1))
    labels = nodes // (NODES // 2)
    return Graph(
        name="circle",
        topology=topology_of(NODES, pairs),
        features=features,
        labels=labels,
        split=split,
        num_classes=2,
    )


def ring(parts: int = PARTS) -> tuple[Setting, Workers]:
    setting = Setting(graph=circle(), fanout=(3, 2), parts=parts)
    return setting, Workers(sampler=setting.sampler(), owner=setting.owner("metis", BATCH), size=parts)


def two() -> Workers:
    """Six nodes with two workers; in its only layer 0 hears 1 and 3, and 3 hears 0 and 4."""
    topology = topology_of(6, [(1, 0), (3, 0), (0, 3), (4, 3), (5, 4), (2, 1)])
    graph = Graph(name="six", topology=topology, features=torch.ones(6, 3))
    return Workers(sampler=Setting(graph=graph, fanout=(-1,)).sampler(), owner=HOMES, size=2)


def test_counts_by_hand() -> None:
    seeds = torch.tensor([3, 0])  # the first model's seed lives with the second worker, and the other way round
    found = of_models(two(), seeds, 0)
    assert found[MODEL_CENTRIC] == Counter(rows=6, remote_rows=4, requests=2, sums=1)
    topology = 8 * 3 + 4 * (2 + 1)
    assert found[NAIVE] == Counter(rows=6, partial_0=2, parameters=4, topology_bytes=4 * topology, sums=1)
    there_and_back = {**found[NAIVE], "partial_0": 4}  # what is begun at home goes along
    assert found[NAIVE_CARRIED] == Counter(there_and_back)
    assert found[P3] == Counter(rows=6, requests=2, activations=2, topology_bytes=2 * topology, upper_sums=1)
    moved = travelling(two(), seeds, 0, [1])
    at_home = Counter(rows=6, remote_rows=2, requests=2, parameters=2, gradients=2, sums=1)
    assert moved[TRAVEL] == moved[PREGATHERED] == at_home
    assert moved["merged, 1 dropped"] == Counter(rows=6, remote_rows=2, requests=2, sums=1)


def test_what_is_carried_by_hand() -> None:
    pairs = [(3, 2), (4, 2), (2, 1), (5, 1), (1, 0)]
    graph = Graph(name="deep", topology=topology_of(6, pairs), features=torch.ones(6, 3))
    blocks = Setting(graph=graph, fanout=(-1, -1)).sampler().sample_blocks(torch.tensor([0, 1]), 1, 0)
    owner = torch.tensor([0, 0, 1, 2, 2, 2])  # below, 0 hears 1, 1 hears 2 and 5, 2 hears 3 and 4
    assert [sources_at(block, owner).sum().item() for block in blocks] == [1 + 2 + 1, 1 + 2]
    topology = 3 * (8 * 6 + 4 * (5 + 4 + 3 + 2))
    assert naive(blocks, owner, 0) == Counter(rows=6, partial_0=3, partial_1=2, parameters=3, topology_bytes=topology)
    found = carried(blocks, owner, 0)  # of 0; of 0 and 1; of 0, 1 and 2, with the sums of 0 and 1 above
    assert found == Counter(rows=6, partial_0=1 + 2 + 3, partial_1=2, parameters=3, topology_bytes=topology)


def test_what_time_steps_share_is_fetched_once() -> None:
    graph = Graph(name="shared", topology=topology_of(6, [(4, 0), (4, 1)]), features=torch.ones(6, 3))
    workers = Workers(sampler=Setting(graph=graph, fanout=(-1,)).sampler(), owner=HOMES, size=2)
    found = travelling(workers, torch.tensor([0, 1]), 0, [])  # both are computed by the first worker, one by each model
    moved = Counter(parameters=2, gradients=2, sums=1)
    assert found[TRAVEL] == Counter(rows=4, remote_rows=2, requests=2) + moved
    assert found[PREGATHERED] == Counter(rows=3, remote_rows=1, requests=1) + moved


def test_bytes_by_hand() -> None:
    graph = Graph(name="six", topology=topology_of(6, [(1, 0)]), features=torch.ones(6, 3))
    model = model_of("sage", dressed(graph, 5), 7, 2)
    whole, first = (sum(p.nbytes for p in part.parameters()) for part in (model, model.layers_list()[0]))
    found = Counter(remote_rows=10, parameters=2, gradients=1, sums=3, upper_sums=1, activations=4, topology_bytes=9)
    priced_of = priced(found, model, dressed(graph, 5), 3)
    assert priced_of == {
        "features": 10 * 5 * 4,
        "ids": 80,
        "partial": 2 * 4 * 7 * 4,
        "topology": 9,
        "model": 3 * whole,
        "sums": 4 * (3 * whole + whole - first),
        "total": 289 + 224 + 3 * whole + 4 * (4 * whole - first),
    }
    columns = [layer.spec.aggregate[0] * layer.spec.aggregate[1] for layer in model.layers_list()]
    parts = priced(Counter(partial_0=2, partial_1=3), model, graph, 3)["partial"]
    assert parts == 4 * (2 * columns[0] + 3 * columns[1])


def test_ways_that_must_agree() -> None:
    setting, workers = ring()
    found = counted(workers, setting.steps(BATCH), [1, 2, 3])
    fetched = ("rows", "remote_rows", "requests")
    assert [found[ELIDED][name] for name in fetched] == [found[PREGATHERED][name] for name in fetched]
    assert found[TRAVEL]["remote_rows"] > found[PREGATHERED]["remote_rows"]
    assert found[PREGATHERED]["remote_rows"] < found["merged, 1 dropped"]["remote_rows"]
    assert found["merged, 2 dropped"]["remote_rows"] < found[MODEL_CENTRIC]["remote_rows"]
    assert [found[f"merged, {fewer} dropped"]["parameters"] for fewer in (1, 2, 3)] == [3 * 4 * 2, 3 * 4, 0]
    assert found[NAIVE]["rows"] == found[P3]["rows"] == found[MODEL_CENTRIC]["rows"]
    assert {counts["seeds"] for counts in found.values()} == {NODES // 2}


def test_everything_is_at_home_with_one_worker() -> None:
    setting, workers = ring(1)
    found = counted(workers, setting.steps(BATCH), [])
    assert not any(counts["remote_rows"] + counts["requests"] + counts["parameters"] for counts in found.values())
    model = model_of("sage", setting.graph, 4, 2)
    assert not any(priced(counts, model, setting.graph, 1)["total"] for counts in found.values())


def test_local_batches_have_every_node_once() -> None:
    pools = [torch.arange(7), torch.arange(10, 13), torch.arange(0)]
    steps = local_batches(pools, 6, 0, 1)
    assert [[len(seeds) for seeds in step] for step in steps] == [[2, 2, 0], [2, 1, 0], [2, 0, 0], [1, 0, 0]]
    for rank, pool in enumerate(pools):
        assert torch.cat([step[rank] for step in steps]).sort().values.tolist() == pool.tolist()
    assert steps[0][0].tolist() != local_batches(pools, 6, 0, 2)[0][0].tolist()
    assert [len(seeds) for seeds in local_batches(pools, None, 0, 1)[0]] == [7, 3, 0]


def test_who_lives_with_the_root() -> None:
    assert beside(torch.tensor([0, 1, 3, 4]), 0, HOMES) == pytest.approx(1 / 3)
    assert beside(torch.tensor([0]), 0, HOMES) is None
    found = locality(two().sampler.sample_blocks, [torch.tensor([0, 3])], {Deal("given", 2): HOMES}, 2)
    assert found.micrograph == [3, 3]
    assert found.subgraph == [4]
    assert found.shares[Deal("given", 2)].micro == [0.5, 0.5]
    assert found.shares[Deal("given", 2)].sub == [pytest.approx(1 / 3)] * 2


def by_layer(graph: og.Graph) -> NeighborSampler:
    return NeighborSampler([graph.topology] * 2, [60, 60], 0, sampler=FASTGCN)


def test_nodes_of_a_layer_without_a_path_to_the_seeds_are_no_part_of_a_micrograph() -> None:
    blocks = by_layer(circle()).sample_blocks(torch.tensor([7]), 1, 0)
    found, inner = reaching(blocks), reaching(blocks[1:])
    assert len(found) == len(blocks[0].src_nodes) < 60
    near = {(7 + step * sign) % NODES for step in (1, 5, 31) for sign in (1, -1)}
    assert set(inner.tolist()) == {7} | (near & set(blocks[1].src_nodes.tolist()))
    assert set(inner.tolist()) <= set(found.tolist())


@pytest.mark.parametrize("sampling", ["node-wise", "layer-wise"])
def test_a_micrograph_is_what_would_be_drawn_for_its_root_alone(sampling: str) -> None:
    setting, _ = ring()
    draw = (setting.sampler() if sampling == "node-wise" else by_layer(setting.graph)).sample_blocks
    seeds = setting.steps(BATCH)[0]
    together = draw(seeds, 1, 0)
    for place, root in enumerate(seeds.tolist()):
        alone = reaching(draw(torch.tensor([root]), 1, 0)).sort().values
        assert reaching(together, place).sort().values.tolist() == alone.tolist()
    assert len(reaching(together)) == len(together[0].src_nodes)


def test_how_even_seeds_are() -> None:
    assert difference(torch.tensor([4, 8, 6])) == 0.5
    assert difference(torch.tensor([0, 0])) == 0
    seeds, homes = torch.arange(8), torch.tensor([0, 0, 0, 1, 0, 1, 0, 0])
    assert seeds_met(8, homes, 2).tolist() == [[3, 1], [1, 3]]
    assert longest(seeds, homes, 2, 0) == 3 + 3
    assert longest(seeds, homes, 2, 1) == 4
    assert longest_at_random(8, homes, 2, 0, 5) == longest(seeds, homes, 2, 0)
    assert {longest_at_random(8, homes, 2, 1, key) for key in range(20)} == {4, 8}  # apart, or both with one worker


def test_seeds_of_dropped_time_steps_are_spread_evenly() -> None:
    met = torch.tensor([5, 1, 4, 0])
    assert merged_into(met, [0, 1, 3], 0) == [7, 2, 1]
    assert merged_into(met, [0, 1, 3], 1) == [6, 3, 1]
    assert merged_into(met, [2], 3) == [10]


@cache
def trained(strategy: Strategy) -> dict[str, Any]:
    """What two workers make of an epoch and another."""
    torch.manual_seed(2)
    model = og.nn.SAGE(3, 4, 2, layers=2, dropout=0.5)
    run = og.train(
        circle(), model, strategy=strategy, workers=2, epochs=2, batch_size=BATCH, fanout=(3, 2), progress=False
    )
    return run.summary


def in_training(monkeypatch: pytest.MonkeyPatch, way: str) -> int:
    """Remote rows that are counted of the epochs that `trained` trains."""
    setting, workers = ring(2)
    found = 0
    for epoch in (1, 2):
        monkeypatch.setattr(migrate_counts, "EPOCH", epoch)
        if way == LOCAL:
            found += local_shuffles(workers, setting, BATCH, None)["remote_rows"]
        else:
            found += counted(workers, setting.steps(BATCH, epoch=epoch), [])[way]["remote_rows"]
    return found


@pytest.mark.usefixtures("pooled")
def test_model_centric_training_is_that_of_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = trained(ModelCentric()), trained(og.Sampled())
    assert ours["strategy"] == "model-centric"
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert ours["counters"]["local_peer_rows"] == in_training(monkeypatch, MODEL_CENTRIC)
    assert theirs["counters"]["local_peer_rows"] == in_training(monkeypatch, ELIDED)


@pytest.mark.usefixtures("pooled")
def test_p3_trains_what_sampled_trains_and_fetches_no_rows() -> None:
    ours, theirs = trained(p3.P3()), trained(og.Sampled())
    assert ours["strategy"] == "p3"
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert ours["counters"]["remote_rows"] == 0


@pytest.mark.usefixtures("pooled")
def test_local_shuffles_train_on_other_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = trained(LocalShuffles()), trained(og.Sampled())
    assert len(ours["loss"]) == 2
    assert ours["loss"] != pytest.approx(theirs["loss"], rel=1e-5)
    assert ours["counters"]["local_peer_rows"] == in_training(monkeypatch, LOCAL)


@pytest.mark.slow
def test_a_model_that_travels_fetches_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = trained(Migrate(move_model=True, pregather=False, merge=False))
    assert ours["counters"]["local_peer_rows"] == in_training(monkeypatch, TRAVEL)


@pytest.mark.parametrize("way", ["rows", "ratio", "locality", "spread"])
@pytest.mark.slow
def test_every_table_is_made(way: str, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    script = Path(migrate_counts.__file__).with_name("migrate.py")
    done = subprocess.run(
        [sys.executable, script, way, "--graphs", "products@0.0005", "--parts", "2", "4", "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["benchmark"] == f"migrate_{way}"
    assert len(found["rows"]) == {"rows": 2 * 2 * (9 + 11), "ratio": 2 * 20, "locality": 16, "spread": 2 * 2 * 6}[way]
