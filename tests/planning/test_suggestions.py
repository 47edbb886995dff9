"""What would do where nothing fits, in numbers that hold."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from outgrow.app.model_registry import build_model
from outgrow.app.plan.question import stand_in_for
from outgrow.engine.batches import EVERYTHING, Batches
from outgrow.planning.estimators.registry import estimate
from outgrow.planning.graph_stats.known_graphs import facts_of, named
from outgrow.planning.hardware.profile import profile_of
from outgrow.planning.planner import Question, pace_of, plan
from outgrow.planning.sizes import model_sizes
from outgrow.planning.suggestions import fixes
from outgrow.planning.traffic import Place
from outgrow.planning.workload import Workload
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.sampled import Sampled

GIB = 1 << 30


def question(
    graph: str, memory: int, batches: Batches = EVERYTHING, *, workers: int = 1, machine: str = "4xA100"
) -> Question:
    """On devices of so much memory."""
    known_machine = profile_of(machine)
    facts = facts_of(graph)
    known, stand_in = named(facts), stand_in_for(facts)
    model = build_model("gcn", stand_in, {"hidden": 256, "layers": 3})
    work = Workload(graph=known.sizes, model=model_sizes(model, stand_in), shape=known, sampling=known, batches=batches)
    place = Place(workers=workers)
    profile = replace(known_machine, device=replace(known_machine.device, memory_bytes=memory))
    return Question(work=work, profile=profile, places=[place], limit=None, require=lambda _: None)


def test_more_memory_is_as_much_as_it_takes() -> None:
    asked = replace(question("friendster", 80 * GIB), limit=GIB // 4)
    assert plan(asked).chosen is None
    [first, *_] = fixes(asked)
    [told] = re.findall(r"--memory (\d+)MiB", first)
    enough = replace(asked, limit=int(told) << 20)
    found = estimate(Offload(memory=f"{told}MiB"), enough.work, pace_of(enough, enough.places[0]))
    assert found.peak_bytes <= int(told) << 20


def test_smaller_batches_fit() -> None:
    wide = Batches(size=100_000, fanout=(25, 20, 15))
    few = int(1.1 * _held(question("reddit", 80 * GIB, replace(wide, size=5_000))))
    asked = question("reddit", few, wide)
    assert _held(asked) > few
    [told] = [each for fix in fixes(asked) for each in re.findall(r"--batch-size (\d+)", fix)]
    assert 100 < int(told) < 100_000
    assert _held(question("reddit", few, replace(wide, size=int(told)))) <= few


def test_mini_batches_instead_of_the_whole_graph() -> None:
    """Where there is enough for them, and for an evaluation of whole layers."""
    small = _held(question("products", 80 * GIB, Batches(size=1024, fanout=(10, 10, 10)), workers=4))
    asked = question("products", int(1.1 * small), workers=4)
    whole = next(each for each in plan(asked).candidates if each.name == "full")
    assert whole.why_not
    assert any("--batch-size 1024 --fanout 10,10,10" in fix for fix in fixes(asked))
    assert not any("--batch-size" in fix for fix in fixes(question("products", small // 4, workers=4)))


@pytest.mark.parametrize("batches", [EVERYTHING, Batches(size=1024, fanout=(10, 10, 10))])
def test_more_workers_are_told_as_hosts_like_this_one(batches: Batches) -> None:
    asked = question("papers100M", 4 * GIB, batches, machine="16xT4")
    [fix] = [fix for fix in fixes(asked) if "workers on" in fix]
    workers, hosts = map(int, re.findall(r"\d+", fix)[:2])
    assert workers > 1
    assert hosts == workers
    alone = replace(asked, profile=profile_of("V100"))  # nothing is known of a network
    assert not any("workers on" in fix for fix in fixes(alone))


def test_mini_batches_keep_to_no_limit() -> None:
    asked = replace(question("reddit", 80 * GIB, Batches(size=1024, fanout=(5, 5, 5))), limit=GIB)
    assert "no --memory" in fixes(asked)[0]


def _held(asked: Question) -> int:
    return estimate(Sampled(), asked.work, pace_of(asked, asked.places[0])).peak_bytes
