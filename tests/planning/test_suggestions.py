"""What would do where nothing fits, in numbers that hold."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from outgrow.app.model_registry import build_model
from outgrow.app.plan.question import placeholder_graph
from outgrow.engine.batches import FULL_GRAPH, BatchConfig
from outgrow.planning.estimators.registry import estimate_strategy
from outgrow.planning.graph_stats.known_graphs import known_graph, load_graph_facts
from outgrow.planning.hardware.profile import find_profile
from outgrow.planning.model_sizes import model_sizes
from outgrow.planning.planner import PlannerQuery, cost_model_for, fits_in, make_plan
from outgrow.planning.suggestions import suggest_fixes
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import Workload
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.sampled import Sampled

GIB = 1 << 30


def question(
    graph: str, memory: int, batches: BatchConfig = FULL_GRAPH, *, workers: int = 1, machine: str = "4xA100"
) -> PlannerQuery:
    """On devices of so much memory."""
    known_machine = find_profile(machine)
    facts = load_graph_facts(graph)
    known, stand_in = known_graph(facts), placeholder_graph(facts)
    model = build_model("gcn", stand_in, {"hidden": 256, "layers": 3})
    work = Workload(
        graph=known.sizes, model=model_sizes(model, stand_in), partitioning=known, sampling=known, batches=batches
    )
    place = WorkerLayout(workers=workers)
    profile = replace(known_machine, device=replace(known_machine.device, memory_bytes=memory))
    return PlannerQuery(work=work, profile=profile, layouts=[place], limit=None, validate=lambda _: None)


def test_more_memory_is_as_much_as_it_takes() -> None:
    asked = replace(question("friendster", 80 * GIB), limit=GIB // 4)
    assert make_plan(asked).chosen_candidate is None
    [first, *_] = suggest_fixes(asked)
    [told] = re.findall(r"--memory (\d+)MiB", first)
    enough = replace(asked, limit=int(told) << 20)
    found = estimate_strategy(Offload(memory=f"{told}MiB"), enough.work, cost_model_for(enough, enough.layouts[0]))
    assert found.peak_bytes <= int(told) << 20


def unevaluated(asked: PlannerQuery) -> PlannerQuery:
    """The same without evaluations, whose memory depends on what there is."""
    return replace(asked, work=replace(asked.work, evaluation=("none", "none")))


def test_smaller_batches_fit() -> None:
    wide = BatchConfig(size=100_000, fanout=(25, 20, 15))
    few = int(1.1 * _held(unevaluated(question("reddit", 80 * GIB, replace(wide, size=5_000)))))
    asked = unevaluated(question("reddit", few, wide))
    assert _held(asked) > few
    [told] = [each for fix in suggest_fixes(asked) for each in re.findall(r"--batch-size (\d+)", fix)]
    assert 100 < int(told) < 100_000
    assert _held(unevaluated(question("reddit", few, replace(wide, size=int(told))))) <= few


def test_mini_batches_instead_of_the_whole_graph() -> None:
    """Where there is enough for them: evaluations in chunks take a part of what there is."""
    small = _held(question("products", 80 * GIB, BatchConfig(size=1024, fanout=(10, 10, 10)), workers=4))
    asked = question("products", int(1.1 * small), workers=4)
    whole = next(each for each in make_plan(asked).candidates if each.name == "full")
    assert whole.why_not
    assert any("--batch-size 1024 --fanout 10,10,10" in fix for fix in suggest_fixes(asked))
    assert not any("--batch-size" in fix for fix in suggest_fixes(question("products", small // 50, workers=4)))


@pytest.mark.parametrize("batches", [FULL_GRAPH, BatchConfig(size=1024, fanout=(10, 10, 10))])
def test_more_workers_are_told_as_hosts_like_this_one(batches: BatchConfig) -> None:
    asked = question("papers100M", 4 * GIB, batches, machine="16xT4")
    [fix] = [fix for fix in suggest_fixes(asked) if "workers on" in fix]
    workers, hosts = map(int, re.findall(r"\d+", fix)[:2])
    assert workers > 1
    assert hosts == workers
    alone = replace(asked, profile=find_profile("V100"))  # nothing is known of a network
    assert not any("workers on" in fix for fix in suggest_fixes(alone))


def test_a_larger_limit_for_mini_batches() -> None:
    """One that is enough, and not much more than that."""
    asked = replace(question("papers100M", 80 * GIB, BatchConfig(size=4096, fanout=(15, 10, 5))), limit=GIB // 4)
    [fix] = [fix for fix in suggest_fixes(asked) if "--memory" in fix]
    [limit] = [int(number) << 20 for number in re.findall(r"(\d+)MiB", fix)]
    assert _fits(replace(asked, limit=limit))
    assert not _fits(replace(asked, limit=round(0.9 * limit)))


def _fits(asked: PlannerQuery) -> bool:
    costs = cost_model_for(asked, asked.layouts[0])
    return fits_in(estimate_strategy(Sampled(prefetch=0, memory=asked.memory_option), asked.work, costs), costs)


def _held(asked: PlannerQuery) -> int:
    return estimate_strategy(Sampled(), asked.work, cost_model_for(asked, asked.layouts[0])).peak_bytes
