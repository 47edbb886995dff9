"""Tables of papers are predicted by the planner itself; no cell is scored that a constant was fitted on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import papers
import papers_score
import pytest
from papers_cells import Entry, entries

from outgrow.app.plan.question import PlanRequest, answer_request
from outgrow.planning.graph_stats.known_graphs import load_graph_facts
from outgrow.planning.hardware.profile import write_profile


def _cells() -> list[Entry]:
    """A cell of each strategy on one host."""
    found: dict[str, Entry] = {}
    for entry in entries():
        known = entry.strategy and entry.values["model"] == "gcn" and not entry.values.get("decoupled")
        if known and entry.hosts == 1 and entry.workers == entry.machine.workers:
            found.setdefault(str(entry.strategy), entry)
    return [*found.values()]


@pytest.mark.parametrize("entry", _cells(), ids=lambda entry: str(entry.strategy))
def test_numbers_are_those_of_a_plan(entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds, memory and whether it fits are what ``outgrow plan`` says of the same question, to the last digit."""
    write_profile(entry.machine, tmp_path / "machine.json")
    values = entry.values
    facts = load_graph_facts(values["graph"])
    facts |= facts.get("sizes_by_paper", {}).get(entry.paper, {})
    monkeypatch.setattr("outgrow.app.plan.question.load_graph_facts", lambda _: facts)
    options: dict[str, object] = {"layers": values["layers"], "hidden": values["hidden"]}
    # Not what the library's own recipe for the graph says.
    options |= {"dropout": 0.5, "input_dropout": 0.5, "norm": False}
    if entry.strategy in ("sampled", "orchestrate"):
        options["batch_size"] = values.get("batch_size") or 1024
        options["fanout"] = tuple(values.get("fanout") or [10] * values["layers"])
    plan, _ = answer_request(
        PlanRequest(
            workload=values["graph"],
            model="gcn",
            options=options,
            workers=entry.workers,
            hardware=str(tmp_path / "machine.json"),
        )
    )
    made = papers.predict(entry)
    assert made is not None
    own = [each for each in plan.candidates if each.name == entry.strategy]
    chosen = papers.choose_strategy(entry).options()
    [candidate] = [each for each in own if each.estimate is not None]
    assert candidate.estimate is not None
    same = candidate.estimate.strategy.options() == chosen
    # Chunks and hot nodes are those of the paper, which a plan would choose otherwise.
    assert same or entry.strategy in ("offload", "tensor", "orchestrate")
    if same:
        assert made.seconds == candidate.estimate.epoch_seconds
        assert made.peak_bytes == candidate.estimate.peak_bytes
        assert made.fits == (not candidate.why_not.startswith("needs"))
    assert made.memory == plan.memory


def _row(system: str, strategy: str, published: float | None, **values: Any) -> dict[str, Any]:
    row = {"paper": "hongtu", "table": "9", "system": system, "strategy": strategy, "machine": "4xA100, 4"}
    row |= {"graph": "reddit", "model": "gcn", "layers": 2, "hidden": 64, "batch_size": None, "repeated": False}
    return row | {"published": published, "fitted": False, "fits": True, "memory_gb": 80.0} | values


def test_fitted_cells_are_not_scored() -> None:
    rows = [
        _row("A", "full", 1.0, predicted=1.0, with_constant=1.0, fitted=True),
        _row("B", "offload", 2.0, predicted=5.0, with_constant=2.0),
    ]
    found = papers_score.score(rows)
    assert found["times_without_constants"]["planner"]["cells"] == 2
    assert found["times_with_constants"]["planner"]["cells"] == 1
    assert found["winners_without_constants"]["comparisons"] == 1
    assert found["winners_with_constants"]["comparisons"] == 0


def test_rules_stand_beside_every_score() -> None:
    rows = [
        _row("HongTu", "offload", 1.0, predicted=3.0, with_constant=3.0),
        _row("DistGNN", "full", 2.0, predicted=2.0, with_constant=2.0),
        _row("Other", "sampled", None, predicted=4.0, with_constant=4.0, fits=False),
    ]
    found = papers_score.score(rows)
    winners = found["winners_without_constants"]
    assert winners["planner"] == 0
    assert winners["rule: the paper's own system"] == 1
    assert found["memory"]["planner"]["all"] == 1
    assert found["memory"]["rule: everything fits"]["out_of_memory"] == 0
    assert sum("rule" in name for name in found["times_without_constants"]) == 2
