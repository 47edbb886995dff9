"""A plan for people, and as JSON."""

from __future__ import annotations

from typing import Any

from outgrow.planning.estimate import Estimate
from outgrow.planning.hardware.profile import Profile
from outgrow.planning.planner import NOISE, Candidate, Plan
from outgrow.planning.suggestions import fixes
from outgrow.strategies.base import Strategy

_MIB = 1 << 20
_COLUMNS = ("strategy", "workers", "an epoch", "memory", "between workers", "host and disk", "options, or why not")


class Outlook:
    """What training will take by every strategy, as `og.plan` gives it; printed as a table. Final.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def chosen(self) -> Strategy | None:
        """The fastest that can be chosen, on its best number of workers; None if nothing fits."""
        best = self.plan.chosen
        return None if best is None or best.estimate is None else best.estimate.strategy

    def as_dict(self) -> dict[str, Any]:
        """As ``outgrow plan --json`` prints it."""
        return as_dict(self.plan)

    def __str__(self) -> str:
        return table_of(self.plan)

    def __repr__(self) -> str:
        return f"Outlook({sentence(self.plan)})"


def sentence(found: Plan) -> str:
    """What was chosen, and why."""
    chosen, second = found.chosen, found.second
    if chosen is None or chosen.estimate is None:
        return "no strategy can train this here"
    text = f"strategy {chosen.name}: {spelled(chosen.estimate.seconds)} an epoch estimated"
    if second is None or second.estimate is None:
        return f"{text}, the only one that can be chosen"
    times = second.estimate.seconds / max(chosen.estimate.seconds, 1e-12)
    if times <= 1 + NOISE:
        return f"{text}, and no other is faster by more than {NOISE:.0%}"
    return f"{text}; the next, {second.name}, takes {times:,.2f} times as long"


def numbered(found: Plan) -> str:
    """What would do where nothing can be chosen."""
    told = fixes(found.asked)
    return "; ".join(f"{number}. {fix}" for number, fix in enumerate(told, 1)) or "train a smaller model"


def spelled(seconds: float) -> str:
    """``0.0123`` as ``12.3 ms``."""
    if seconds < 1:
        return f"{seconds * 1e3:,.3g} ms"
    return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def as_dict(found: Plan) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "machine": found.asked.profile.name,
        "machine_date": found.asked.profile.date,
        "memory_bytes": found.memory,
        "chosen": None if found.chosen is None else found.chosen.name,
        "why": sentence(found),
        "fixes": [] if found.chosen else fixes(found.asked),
        "strategies": [_candidate(each) for each in found.candidates],
    }


def _candidate(each: Candidate) -> dict[str, Any]:
    plain: dict[str, Any] = {"strategy": each.name, "workers": each.workers, "why_not": each.why_not or None}
    if each.estimate is None:
        return plain
    found, traffic = each.estimate, each.estimate.traffic
    return {
        **plain,
        "options": found.strategy.options(),
        "chunks": found.chunks,
        "epoch_seconds": found.seconds,
        "parts": [{"name": part.name, "seconds": part.seconds, "hidden": part.hidden} for part in found.parts],
        "peak_bytes": found.peak_bytes,
        "bytes": {
            when: [{"link": link.value, "kind": kind.value, "bytes": count} for (link, kind), count in moved.items()]
            for when, moved in (("once", traffic.once), ("epoch", traffic.epoch), ("evaluation", traffic.evaluation))
        },
    }


def table_of(found: Plan) -> str:
    """A line for each strategy, those that can be chosen first; and where the chosen one's time goes."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=_title(found.asked.profile, found.memory), title_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in (_COLUMNS[0], _COLUMNS[-1]) else "right")
    for each in found.candidates:
        best = " *" if each is found.chosen else ""
        table.add_row(f"{each.name}{best}", str(each.workers), *_figures(each.estimate), _remark(each))
    console = Console(width=150, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
        console.print(sentence(found), highlight=False)
        if found.chosen is not None and found.chosen.estimate is not None:
            console.print(_where(found.chosen.estimate), highlight=False)
        else:
            console.print(numbered(found), highlight=False)
    return capture.get()


def _title(profile: Profile, memory: int) -> str:
    return f"on {profile.name} ({profile.date}), with {memory / (1 << 30):,.1f} GiB for a worker"


def _figures(found: Estimate | None) -> tuple[str, str, str, str]:
    if found is None:
        return "-", "-", "-", "-"
    moved = {"between": 0, "below": 0}
    for (link, _), count in found.traffic.epoch.items():
        moved["between" if link.value in ("peer", "network") else "below"] += count
    sizes = (f"{count / _MIB:,.1f} MiB" for count in (found.peak_bytes, *moved.values()))
    memory, between, below = sizes
    return spelled(found.seconds), memory, between, below


def _remark(each: Candidate) -> str:
    if each.why_not:
        return f"no: {each.why_not}"
    assert each.estimate is not None
    usual = type(each.estimate.strategy)().options()
    changed = {name: value for name, value in each.estimate.strategy.options().items() if usual[name] != value}
    if each.estimate.chunks:
        changed["chunks"] = each.estimate.chunks
    return ", ".join(f"{name}={value}" for name, value in changed.items()) or "as it is"


def _where(found: Estimate) -> str:
    parts = sorted(found.parts, key=lambda part: part.hidden - part.seconds)
    hidden = [f" ({spelled(part.hidden)} of it beside others)" if part.hidden else "" for part in parts]
    told = [f"{part.name} {spelled(part.seconds)}{beside}" for part, beside in zip(parts, hidden, strict=True)]
    return "its epoch: " + ", ".join(told)
