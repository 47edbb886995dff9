"""Outcomes are counted by fault and by strategy."""

from summary import summary, table


def row(fault: str, strategy: str, outcome: str, code: int, *, violations: tuple[str, ...] = ()) -> dict[str, object]:
    return {
        "fault": fault,
        "strategy": strategy,
        "outcome": outcome,
        "code": code,
        "seconds": 3.0 + code,
        "violations": violations,
    }


def test_counts() -> None:
    left_out = {"fault": "link", "strategy": "full", "outcome": "left out", "violations": []}
    found = [
        row("kill", "full", "resumed", 1),
        row("kill", "full", "no checkpoint", 1),
        row("kill", "split", "resumed", 2, violations=("another loss",)),
        row("slow", "split", "went on", 0),
        left_out,
    ]
    made = summary(found)
    assert made["kill"]["strategies"]["full"] == {"runs": 2, "resumed": 1, "no checkpoint": 1, "not as promised": 0}
    assert (made["kill"]["resumed"], made["kill"]["not as promised"], made["kill"]["slowest_seconds"]) == (2, 1, 5.0)
    assert made["slow"]["slowest_seconds"] is None
    assert table(made)[2:] == [
        "| kill | 3 | 2 | 1 | 0 | 0 | 0 | 1 | 5 s |",
        "| slow | 1 | 0 | 0 | 1 | 0 | 0 | 0 |  |",
        "| link | 1 | 0 | 0 | 0 | 0 | 1 | 0 |  |",
    ]
