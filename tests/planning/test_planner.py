"""What is chosen, and why; one estimate by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outgrow.app.plan.question import PlanSite, candidate_layouts, placeholder_graph, query_for_known_graph
from outgrow.core.ledger import Kind, Link
from outgrow.nn import GCN, GIN
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import Estimate
from outgrow.planning.estimators.registry import estimate_strategy
from outgrow.planning.graph_stats.known_graphs import known_graph, load_graph_facts
from outgrow.planning.hardware.profile import LinkRate, MachineProfile, find_profile
from outgrow.planning.model_sizes import model_sizes
from outgrow.planning.planner import Plan, _strategy_variants, make_plan
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import Workload
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.memory import OVERLAPPING_CHUNKS
from outgrow.training.config import TrainConfig

DOCS = Path(__file__).parents[2] / "docs" / "planner.md"
BATCHES = TrainConfig(batch_size=1024, fanout=(25, 10))


def _plan(
    graph: str, profile: MachineProfile | str, *, workers: int | None = None, limit: str | None = None, **options: Any
) -> Plan:
    machine = find_profile(profile) if isinstance(profile, str) else profile
    config = options.pop("config", TrainConfig())
    settings = {"layers": 2, "hidden": 128, **options}
    site = PlanSite(machine, candidate_layouts(machine, workers), limit)
    return make_plan(query_for_known_graph(graph, "gcn", settings, config, site))


def test_what_fits_is_trained_whole() -> None:
    found = _plan("arxiv", "4xA100", workers=1)
    assert found.chosen_candidate is not None
    assert found.chosen_candidate.name == "full"
    why = {each.name: each.why_not for each in found.candidates}
    assert "as strategy full trains" in why["offload"]
    assert "batch size" in why["sampled"]


def test_what_does_not_fit_is_trained_in_chunks_that_do() -> None:
    found = _plan("friendster", "4xA100", hidden=256, layers=3)
    assert found.chosen_candidate is not None
    assert found.chosen_candidate.name == "offload"
    assert found.chosen_candidate.estimate is not None
    assert found.chosen_candidate.estimate.peak_bytes <= found.memory
    assert "GiB" in {each.name: each.why_not for each in found.candidates}["full"]


def test_features_that_cross_a_slow_network_are_moved_least() -> None:
    """Wide features of many neighbours on hosts of 1 Gbit/s: what is computed together is chosen; on a fast one not."""
    t4 = find_profile("16xT4")
    chosen = {}
    for speed in (1e8, 1e12):
        slow = replace(t4, links={**t4.links, Link.NETWORK: LinkRate(bytes_per_second=speed)})
        best = _plan("reddit", slow, workers=8, hidden=16, config=BATCHES).chosen_candidate
        assert best is not None
        chosen[speed] = best
    first, second = chosen.values()
    assert first.estimate is not None
    assert second.estimate is not None
    network = [
        sum(count for (link, _), count in each.estimate.traffic.epoch.items() if link == Link.NETWORK)
        for each in (first, second)
    ]
    assert network[0] <= network[1]
    assert first.estimate.epoch_seconds > second.estimate.epoch_seconds


def test_workers_of_a_host_share_its_interface() -> None:
    """As many bytes from each worker take twice the time if two workers of each host send them."""
    moved = {(Link.NETWORK, Kind.FEATURES): 1 << 30}
    profile = replace(find_profile("16xT4"), links={Link.NETWORK: LinkRate(bytes_per_second=1e9)})
    apart, together = (
        CostModel.from_profile(profile, WorkerLayout(workers=4 * each, hosts=4), 4).transfer_seconds(moved, 0)
        for each in (1, 2)
    )
    assert apart[Link.NETWORK] == pytest.approx((1 << 28) / 1e9)
    # Half as many bytes from each of twice as many workers leave the host in the same time.
    assert together == apart
    # Where the rate was measured with two on each host, it is that of each.
    measured = replace(profile, workers=2)
    both = CostModel.from_profile(measured, WorkerLayout(workers=8, hosts=4), 4).transfer_seconds(moved, 0)
    assert both[Link.NETWORK] == pytest.approx((1 << 27) / 1e9)


@pytest.mark.parametrize("limit", [None, "15GiB"])
def test_other_options_of_the_chosen_strategy_are_rivals(limit: str | None) -> None:
    t4 = find_profile("16xT4")
    fast = replace(t4, links={**t4.links, Link.NETWORK: LinkRate(bytes_per_second=1e9)})
    small = TrainConfig(batch_size=1024, fanout=(5, 5))
    found = _plan("papers100M", fast, workers=4, hidden=16, config=small, limit=limit)
    chosen = found.chosen_candidate
    assert chosen is not None
    assert chosen.estimate is not None
    assert chosen.name == "sampled"
    strategies = [each.estimate.strategy.options() for each in found.rivals if each.estimate and each.name == "sampled"]
    mine = chosen.estimate.strategy.options()
    assert {each["cache"] for each in (mine, *strategies)} == {0.0, 0.05, 0.2}
    assert {each["prefetch"] for each in (mine, *strategies)} == {mine["prefetch"]}
    assert chosen not in found.rivals
    assert all(each.workers == chosen.workers for each in found.rivals)
    seconds = [each.seconds for each in found.rivals]
    assert seconds == sorted(seconds)
    assert max(seconds) <= found.query.interval_of_ratios * chosen.seconds


def test_a_cache_of_split_saves_copies_to_the_device() -> None:
    found = _plan("papers100M", "4xA100", workers=4, config=BATCHES)
    costs = CostModel.from_profile(find_profile("4xA100"), WorkerLayout(workers=4), 4)
    plain, cached = (estimate_strategy(SplitParallel(cache=each), found.query.work, costs) for each in (0.0, 0.1))
    copies = [
        next(part.seconds for part in each.parts if part.name == "features to the device") for each in (plain, cached)
    ]
    assert copies[1] < 0.9 * copies[0]
    row_bytes = found.query.work.graph.row_bytes
    rows = min(0.1 * found.query.work.graph.nodes, found.query.work.graph.nodes / 4)
    assert cached.peak_bytes - plain.peak_bytes == pytest.approx(rows * row_bytes, rel=1e-3)
    assert cached.traffic.epoch == plain.traffic.epoch


@pytest.mark.parametrize(
    ("strategy", "hides"),
    [(Sampled(), True), (Sampled(prefetch=0), False), (SplitParallel(), True), (Orchestrate(), True)],
)
def test_copies_to_the_device_cost_nothing_only_where_they_are_made_ahead(strategy: Strategy, *, hides: bool) -> None:
    found = _plan("papers100M", "4xA100", config=BATCHES)
    costs = CostModel.from_profile(find_profile("4xA100"), WorkerLayout(workers=1), 4)
    parts = estimate_strategy(strategy, found.query.work, costs).parts
    copies = next(part for part in parts if part.name == "features to the device")
    assert copies.seconds > 0
    assert (copies.hidden > 0) is hides


def test_plans_try_caches_of_split_where_a_device_has_memory_of_its_own() -> None:
    for hardware, tried in (("4xA100", {0.0, 0.05, 0.25}), ("2-core-cpu", {0.0})):
        found = _plan("products", hardware, workers=4, config=BATCHES)
        variants = next(each for each in _strategy_variants(found.query) if each[0].name == "split")
        assert {each.options()["cache"] for each in variants} == tried
    costs = CostModel.from_profile(find_profile("2-core-cpu"), WorkerLayout(workers=4), 4)
    plain, cached = (estimate_strategy(SplitParallel(cache=each), found.query.work, costs) for each in (0.0, 0.1))
    # There is one memory, so a cache takes some and saves no time.
    assert cached.parts == plain.parts
    assert cached.peak_bytes > plain.peak_bytes


def test_models_that_move_are_told_from_those_that_stay() -> None:
    """`migrate` is listed for models that move; where they stay it is `sampled`, and estimated so if asked for."""
    found = _plan("reddit", "4xA100", workers=4, config=BATCHES)
    estimates = {each.name: each.estimate for each in found.candidates}
    listed, sampled = estimates["migrate"], estimates["sampled"]
    assert listed is not None
    assert sampled is not None
    assert listed.strategy.options()["move_model"] is True
    extra = {part.name: part.seconds for part in listed.parts}
    assert extra["models move"] > 0
    assert "waits between time steps" in extra
    costs = CostModel.from_profile(find_profile("4xA100"), WorkerLayout(workers=4), 4)
    stays, moves, plain = (
        estimate_strategy(each, found.query.work, costs) for each in (Migrate(), Migrate(move_model=True), Sampled())
    )
    assert stays.epoch_seconds == plain.epoch_seconds < moves.epoch_seconds
    assert stays.parts == plain.parts
    assert stays.peak_bytes == plain.peak_bytes
    profile = find_profile("16xT4")
    on_hosts = CostModel.from_profile(profile, WorkerLayout(workers=4, hosts=4), 4)
    with_cache = Migrate(cache=0.2), Sampled(cache=0.2)
    cached = [estimate_strategy(each, found.query.work, on_hosts) for each in with_cache]
    assert cached[0].parts == cached[1].parts
    without = estimate_strategy(Sampled(), found.query.work, on_hosts)
    assert cached[0].peak_bytes == cached[1].peak_bytes > without.peak_bytes


def test_one_worker_has_no_models_to_move() -> None:
    found = _plan("reddit", "V100", workers=1, config=BATCHES)
    [moving] = [each for each in found.candidates if each.name == "migrate"]
    assert moving.estimate is None
    assert "sampled" in moving.why_not


def test_with_a_limit_only_those_are_chosen_that_keep_to_it() -> None:
    found = _plan("arxiv", "4xA100", workers=1, limit="40GiB")
    assert found.chosen_candidate is not None
    assert found.chosen_candidate.name in ("offload", "tensor")
    assert "no limit" in {each.name: each.why_not for each in found.candidates}["full"]


def test_what_is_stale_is_chosen_by_nobody() -> None:
    found = _plan("reddit", "V100", config=BATCHES)
    assert found.chosen_candidate is not None
    assert found.chosen_candidate.name != "orchestrate"
    [stale] = [each for each in found.candidates if each.name == "orchestrate"]
    assert stale.estimate is not None
    assert "inexact=true" in stale.why_not


@pytest.mark.parametrize("graph", ["friendster", "it-2004"])
def test_what_is_stale_is_chosen_where_it_is_allowed_and_fastest(graph: str) -> None:
    """Beside a GPU, but not by the same cores; and without being allowed nowhere."""
    allowed = replace(BATCHES, inexact=True)
    found = _plan(graph, "4xA100", workers=1, config=allowed)
    assert found.chosen_candidate is not None
    assert found.chosen_candidate.name == "orchestrate"
    fastest = min((each for each in found.candidates if each.estimate is not None), key=lambda each: each.seconds)
    assert fastest is found.chosen_candidate
    for name, machine, config in ((graph, "4xA100", BATCHES), ("papers100M", "2-core-cpu", allowed)):
        other = _plan(name, machine, workers=1, config=config).chosen_candidate
        assert other is not None
        assert other.name != "orchestrate"


def test_an_unknown_link_is_said() -> None:
    known = find_profile("2-core-cpu")
    links = {link: rate for link, rate in known.links.items() if link != Link.PEER}
    found = _plan("arxiv", replace(known, links=links), workers=2)
    assert found.chosen_candidate is None
    assert "calibrate --workers 2" in found.candidates[0].why_not


def test_the_best_number_of_workers_is_found() -> None:
    """Where a message takes a second, nobody is waited for."""
    fast = find_profile("4xA100")
    slow = replace(fast, links={**fast.links, Link.PEER: LinkRate(bytes_per_second=1e9, message_seconds=1.0)})
    best = [_plan("reddit", profile).chosen_candidate for profile in (fast, slow)]
    assert [each.workers for each in best if each is not None] == [4, 1]


def test_one_estimate_by_hand() -> None:
    """`full` on reddit, as docs/planner.md works it out."""
    facts = load_graph_facts("reddit")
    graph, stand_in, profile = known_graph(facts), placeholder_graph(facts), find_profile("4xA100")
    sizes = model_sizes(GCN(602, 256, 41, layers=2, dropout=0.5), stand_in)
    work = Workload(graph=graph.sizes, model=sizes, partitioning=graph, sampling=graph)
    found = estimate_strategy(Full(), work, CostModel.from_profile(profile, WorkerLayout(workers=4), 4))
    nodes, edges = 58_242, 30_086_672 + 58_242
    product, copy, finish = 19.5e12, 2.039e12, 20.39e9
    by_hand = {
        "products": 2 * 2 * nodes * 602 * 256 / product + 3 * 2 * nodes * 256 * 41 / product,
        "sums over neighbours": 2 * edges * 41 * 4 / copy,
        "activations, dropout, small steps": nodes * (256 + 41) / finish + 2 * 0.5e-3,
        "loss and optimizer": (7 * 164_905 + 6 * nodes * 41) * 4 / copy + 1e-3,
        "peer": (2 * 698_892 * 41 * 4 + 3_957_816) / 4 / 200e9 + 5 * 20e-6,
    }
    assert {part.name: part.seconds for part in found.parts} == pytest.approx(by_hand, rel=1e-6)
    assert found.traffic.epoch[Link.PEER, Kind.ACTIVATIONS] == 114_618_288
    text = DOCS.read_text("utf-8")
    for name, seconds in by_hand.items():
        assert f"| {name} |" in text
        assert f"{seconds * 1e3:.3g} ms" in text
    assert f"{found.epoch_seconds * 1e3:.1f} ms" in text


@pytest.mark.parametrize(("dropout", "raw"), [(0.0, "once"), (0.0, "each-step"), (0.5, "each-step")])
def test_gin_takes_one_more_product_for_the_gradient_of_eps_where_it_sums_features(dropout: float, raw: str) -> None:
    """Products of the first of two matrices, and numbers of the activations of its layer, of `full` on reddit."""
    facts = load_graph_facts("reddit")
    graph, profile = known_graph(facts), find_profile("4xA100")
    model = GIN(602, 256, 41, input_dropout=dropout)
    sizes = model_sizes(model, placeholder_graph(facts))
    work = Workload(graph=graph.sizes, model=sizes, partitioning=graph, sampling=graph)
    costs = CostModel.from_profile(profile, WorkerLayout(workers=4), 4)
    found = {part.name: part.seconds for part in estimate_strategy(Full(first_aggregate=raw), work, costs).parts}
    nodes, product, finish = 58_242, 19.5e12, 20.39e9
    once = raw == "once"
    multiplied = (3 if once else 2) * 602 * 256 + 2 * 256 * 256 + 3 * (256 * 41 + 41 * 41)
    assert found["products"] == pytest.approx(2 * nodes * multiplied / product, rel=1e-6)
    # Of the sum with the node itself one result, without gradients; or three.
    summed = 602 // 2 if once else 3 * 256 // 2
    passed = 256 + 256 + summed + 41 + 41 + 3 * 41 // 2
    assert found["activations, dropout, small steps"] == pytest.approx(nodes * passed / finish + 2 * 0.5e-3, rel=1e-3)


def test_tensor_copies_chunks_to_a_gpu_that_has_no_memory_for_all_of_them() -> None:
    def tensor(limit: str | None) -> Estimate:
        found = _plan("products", "4xA100", workers=4, limit=limit)
        [mine] = [each for each in found.candidates if each.name == "tensor"]
        assert not mine.why_not
        assert mine.estimate is not None
        return mine.estimate

    whole, limited = tensor(None), tensor("6GiB")
    assert whole.chunks == OVERLAPPING_CHUNKS
    assert whole.peak_bytes > 6 << 30 >= limited.peak_bytes
    assert limited.chunks is not None
    assert limited.chunks > OVERLAPPING_CHUNKS
    copied = [part.seconds for part in limited.parts if part.name == "edges from files"]
    assert copied > [0.0]
    assert limited.epoch_seconds > whole.epoch_seconds + copied[0]
