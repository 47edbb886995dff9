"""Plans as tables for people, and as JSON."""

from __future__ import annotations

from typing import Any

from outgrow.planning.estimate import Estimate
from outgrow.planning.hardware.profile import MachineProfile
from outgrow.planning.planner import NOISE, Candidate, Plan, PlannerQuery
from outgrow.planning.suggestions import suggest_fixes
from outgrow.strategies.base import Strategy

_MIB = 1 << 20
_COLUMNS = ("strategy", "workers", "an epoch", "memory", "between workers", "host and disk", "options, or why not")


class PlanReport:
    """Plan as `og.plan` returns it; printed as a table. Final.

    Args:
        plan: Plan to show.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def chosen(self) -> Strategy | None:
        """Fastest strategy that can be chosen, with its best options; None if none fits."""
        best = self.plan.chosen_candidate
        return None if best is None or best.estimate is None else best.estimate.strategy

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as ``outgrow plan --json`` prints it."""
        return plan_to_dict(self.plan)

    def __str__(self) -> str:
        return format_plan(self.plan)

    def __repr__(self) -> str:
        return f"PlanReport({explain_choice(self.plan)})"


def explain_choice(plan: Plan) -> str:
    """Return one sentence on which strategy was chosen, and why."""
    chosen, second = plan.chosen_candidate, plan.runner_up
    if chosen is None or chosen.estimate is None:
        return "no strategy can train this here"
    text = f"strategy {chosen.name}: {format_duration(chosen.estimate.epoch_seconds)} an epoch estimated"
    if second is None or second.estimate is None:
        return f"{text}, the only one that can be chosen"
    times = second.estimate.epoch_seconds / max(chosen.estimate.epoch_seconds, 1e-12)
    # Times that differ by less count as equal: a ratio such as 1.01 would claim too much accuracy.
    if times <= 1 + NOISE:
        return f"{text}, and no other is faster by more than {NOISE:.0%}"
    return f"{text}; the next, {second.name}, takes {times:,.2f} times as long"


def numbered_fixes(query: PlannerQuery) -> str:
    """Return numbered fixes for a question of which no strategy fits."""
    fixes = suggest_fixes(query)
    return "; ".join(f"{number}. {fix}" for number, fix in enumerate(fixes, 1))


def format_duration(seconds: float) -> str:
    """Format a duration: ``0.0123`` as ``12.3 ms``."""
    if seconds < 1:
        return f"{seconds * 1e3:,.3g} ms"
    return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan as values for JSON."""
    return {
        "machine": plan.query.profile.name,
        "machine_date": plan.query.profile.date,
        "memory_bytes": plan.memory,
        "chosen": None if plan.chosen_candidate is None else plan.chosen_candidate.name,
        "why": explain_choice(plan),
        "fixes": [] if plan.chosen_candidate else suggest_fixes(plan.query),
        "strategies": [_candidate_to_dict(each) for each in plan.candidates],
    }


def _candidate_to_dict(each: Candidate) -> dict[str, Any]:
    plain: dict[str, Any] = {"strategy": each.name, "workers": each.workers, "why_not": each.why_not or None}
    if each.estimate is None:
        return plain
    found = each.estimate
    traffic = each.estimate.traffic
    return {
        **plain,
        "options": found.strategy.options(),
        "chunks": found.chunks,
        "epoch_seconds": found.epoch_seconds,
        "parts": [{"name": part.name, "seconds": part.seconds, "hidden": part.hidden} for part in found.parts],
        "peak_bytes": found.peak_bytes,
        "bytes": {
            when: [{"link": link.value, "kind": kind.value, "bytes": count} for (link, kind), count in moved.items()]
            for when, moved in (("once", traffic.once), ("epoch", traffic.epoch), ("evaluation", traffic.evaluation))
        },
    }


def format_plan(plan: Plan) -> str:
    """Return a table with a row for each strategy, the choice, and where the time of the chosen one goes."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=_format_title(plan.query.profile, plan.memory), title_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in (_COLUMNS[0], _COLUMNS[-1]) else "right")
    for each in plan.candidates:
        best = " *" if each is plan.chosen_candidate else ""
        table.add_row(f"{each.name}{best}", str(each.workers), *_format_figures(each.estimate), _format_remark(each))
    # A fixed width: the result may go to a file or a test, where there is no terminal to ask.
    console = Console(width=150, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
        console.print(explain_choice(plan), highlight=False)
        if plan.chosen_candidate is not None and plan.chosen_candidate.estimate is not None:
            console.print(_format_parts(plan.chosen_candidate.estimate), highlight=False)
        else:
            console.print(numbered_fixes(plan.query), highlight=False)
    return capture.get()


def _format_title(profile: MachineProfile, memory: int) -> str:
    return f"on {profile.name} ({profile.date}), with {memory / (1 << 30):,.1f} GiB for a worker"


def _format_figures(estimate: Estimate | None) -> tuple[str, str, str, str]:
    if estimate is None:
        return "-", "-", "-", "-"
    moved = {"between": 0, "below": 0}
    for (link, _), count in estimate.traffic.epoch.items():
        moved["between" if link.value in ("peer", "network") else "below"] += count
    sizes = (f"{count / _MIB:,.1f} MiB" for count in (estimate.peak_bytes, *moved.values()))
    memory, between, below = sizes
    return format_duration(estimate.epoch_seconds), memory, between, below


def _format_remark(each: Candidate) -> str:
    if each.why_not:
        return f"no: {each.why_not}"
    assert each.estimate is not None
    usual = type(each.estimate.strategy)().options()
    changed = {name: value for name, value in each.estimate.strategy.options().items() if usual[name] != value}
    if each.estimate.chunks:
        changed["chunks"] = each.estimate.chunks
    return ", ".join(f"{name}={value}" for name, value in changed.items()) or "as it is"


def _format_parts(estimate: Estimate) -> str:
    parts = sorted(estimate.parts, key=lambda part: part.hidden - part.seconds)
    hidden = [f" ({format_duration(part.hidden)} of it beside others)" if part.hidden else "" for part in parts]
    # Sorted above by the time that no other part hides: that is what lengthens the epoch.
    described = [f"{part.name} {format_duration(part.seconds)}{note}" for part, note in zip(parts, hidden, strict=True)]
    return "its epoch: " + ", ".join(described)
