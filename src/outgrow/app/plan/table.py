"""Plans as tables for people, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outgrow.app.console import format_memory
from outgrow.app.strategy_registry import changed_options, format_options
from outgrow.planning.estimate import EpochPart, Estimate
from outgrow.planning.planner import Candidate, Plan, PlannerQuery
from outgrow.planning.suggestions import suggest_fixes
from outgrow.strategies.base import Strategy

_WIDTH = 100
_COLUMNS = ("strategy", "workers", "an epoch", "likely", "evaluation", "memory", "sent", "host, disk")


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
    times = second.seconds / max(chosen.seconds, 1e-12)
    # Times that differ by less count as equal: a ratio such as 1.01 would claim too much accuracy.
    tolerance = plan.query.tolerance
    if times < 1:
        return f"{text}; {second.name}, less simple, would take {times:.2f} of that: no more than estimates may err"
    if times <= 1 + tolerance:
        return f"{text}, and no other is faster by more than {tolerance:.0%}, which estimates may err by"
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
        "interval": plan.query.corrections.interval_factor,
        "tolerance": plan.query.tolerance,
        "learned_runs": plan.query.corrections.runs,
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
        "evaluation_seconds": found.evaluation_seconds,
        "compile_seconds": each.compile_seconds,
        "parts": _parts_to_list(found.parts),
        "evaluation_parts": _parts_to_list(found.evaluation),
        "peak_bytes": found.peak_bytes,
        "bytes": {
            when: [{"link": link.value, "kind": kind.value, "bytes": count} for (link, kind), count in moved.items()]
            for when, moved in (("once", traffic.once), ("epoch", traffic.epoch), ("evaluation", traffic.evaluation))
        },
    }


def _parts_to_list(parts: Sequence[EpochPart]) -> list[dict[str, Any]]:
    return [{"name": part.name, "seconds": part.seconds, "hidden": part.hidden} for part in parts]


def format_plan(plan: Plan) -> str:
    """Return a table with a row for each strategy, the choice, and where the time of the chosen one goes."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=_format_title(plan), title_justify="left", title_style="none", box=SIMPLE_HEAD, padding=(0, 1))
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == _COLUMNS[0] else "right", no_wrap=True)
    factor = plan.query.corrections.interval_factor
    for each in plan.candidates:
        best = " *" if each is plan.chosen_candidate else ""
        if each.estimate is not None:
            table.add_row(f"{each.name}{best}", str(each.workers), *_format_figures(each.estimate, factor))
    # A fixed width: the result may go to a file or a test, where there is no terminal to ask.
    console = Console(width=_WIDTH, force_terminal=False)
    with console.capture() as capture:
        if table.rows:
            console.print(table)
        for line in _format_remarks(plan.candidates):
            console.print(line, highlight=False)
        console.print(explain_choice(plan), highlight=False)
        if plan.chosen_candidate is not None and plan.chosen_candidate.estimate is not None:
            console.print(_format_parts(plan.chosen_candidate.estimate), highlight=False)
            console.print(f"before it: {_format_compilation(plan.chosen_candidate.compile_seconds)}", highlight=False)
        else:
            for number, fix in enumerate(suggest_fixes(plan.query), 1):
                console.print(f"{number}. {fix}", highlight=False)
    return capture.get()


def _format_title(plan: Plan) -> str:
    profile, corrections = plan.query.profile, plan.query.corrections
    learned = f", corrected by {corrections.runs} runs" if corrections.runs else ""
    memory = f"{plan.memory / (1 << 30):,.1f} GiB for a worker"
    return f"on {profile.name} ({profile.date}{learned}), with {memory}; bytes of an epoch"


def _format_figures(estimate: Estimate, factor: float) -> tuple[str, ...]:
    """Return the cells of a row: seconds, four of five times within so many times, memory and bytes."""
    moved = {"between": 0, "below": 0}
    for (link, _), count in estimate.traffic.epoch.items():
        moved["between" if link.value in ("peer", "network") else "below"] += count
    sizes = (format_memory(count) if count else "-" for count in (estimate.peak_bytes, *moved.values()))
    evaluation = format_duration(estimate.evaluation_seconds) if estimate.evaluation else "-"
    return format_duration(estimate.epoch_seconds), _format_likely(estimate, factor), evaluation, *sizes


def _format_likely(estimate: Estimate, factor: float) -> str:
    """Format an interval of seconds, both ends in the unit of the larger one: ``23 to 54 ms``."""
    least, most = estimate.epoch_seconds / factor, estimate.epoch_seconds * factor
    unit, scale = ("ms", 1e3) if most < 1 else ("s", 1.0)
    return (
        " to ".join(f"{scale * end:,.0f}" if scale * end >= 10 else f"{scale * end:,.2g}" for end in (least, most))
        + f" {unit}"
    )


def _format_remarks(candidates: Sequence[Candidate]) -> list[str]:
    """Return a line for candidates with other options than the usual ones, or that cannot be chosen, and why."""
    names: dict[str, list[str]] = {}
    for each in candidates:
        options = "" if each.estimate is None else _format_options(each.estimate)
        remark = ": ".join(filter(None, (options, each.why_not and f"no, {each.why_not}")))
        names.setdefault(remark, []).append(each.name)
    # What holds for several is said once.
    return [f"{', '.join(same)}: {remark}" for remark, same in names.items() if remark]


def _format_options(estimate: Estimate) -> str:
    changed = changed_options(estimate.strategy)
    if estimate.chunks:
        changed["chunks"] = estimate.chunks
    return format_options(changed)


def _format_compilation(seconds: float | None) -> str:
    if seconds is None:
        return "time to compile kernels, which is not known: nothing like this was trained here"
    if seconds == 0:
        return "no time to compile kernels, as a run like this has compiled them"
    return f"up to {format_duration(seconds)} to compile kernels, which a run like this has taken"


def _format_parts(estimate: Estimate) -> str:
    parts = sorted(estimate.parts, key=lambda part: part.hidden - part.seconds)
    hidden = [f" ({format_duration(part.hidden)} of it beside others)" if part.hidden else "" for part in parts]
    # Sorted above by the time that no other part hides: that is what lengthens the epoch.
    described = [f"{part.name} {format_duration(part.seconds)}{note}" for part, note in zip(parts, hidden, strict=True)]
    return "its epoch: " + ", ".join(described)
