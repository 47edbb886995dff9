"""What crossed each link, and what was computed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from outgrow.core.types import Kind, Link


@dataclass(frozen=True, kw_only=True, eq=False)
class Ledger:
    """Counts of one run.

    Attributes:
        crossed: Bytes by link and kind.
        counters: Other counts by name, such as ``edges_aggregated`` and ``rows_computed``.
    """

    crossed: Counter[tuple[Link, Kind]] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)

    def move(self, link: Link, kind: Kind, num_bytes: int) -> None:
        """Count bytes that crossed a link."""
        self.crossed[link, kind] += num_bytes

    def count(self, counter: str, amount: int) -> None:
        """Add to a counter."""
        self.counters[counter] += amount

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Bytes as ``{link: {kind: bytes}}``, every link named, kinds that crossed it only."""
        table: dict[str, dict[str, int]] = {link.value: {} for link in Link}
        for (link, kind), num_bytes in self.crossed.items():
            table[link.value][kind.value] = num_bytes
        return table
