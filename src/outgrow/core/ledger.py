"""`Ledger`: counts of the bytes moved over each link, by kind, and other counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock

from outgrow.core.deprecation import renamed_members


class Link(StrEnum):
    """Connection that bytes cross."""

    DISK_TO_HOST = "disk_to_host"
    HOST_TO_DEVICE = "host_to_device"
    DEVICE_TO_HOST = "device_to_host"
    PEER = "peer"
    NETWORK = "network"


class Kind(StrEnum):
    """Content of the bytes on a link."""

    FEATURES = "features"
    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"
    TOPOLOGY = "topology"
    IDS = "ids"
    METRICS = "metrics"


@renamed_members(crossed="bytes_by_link", move="add_bytes", count="add_count", largest="update_max")
@dataclass(frozen=True, kw_only=True, eq=False)
class Ledger:
    """Counts of one run. Thread-safe.

    Attributes:
        bytes_by_link: Number of bytes by link and kind.
        counters: Other counts by name, such as ``edges_aggregated`` and ``rows_computed``.
    """

    bytes_by_link: Counter[tuple[Link, Kind]] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    def __reduce__(self) -> tuple[Callable[..., Ledger], tuple[object, ...]]:
        """Pickle without the lock, which cannot be pickled."""
        return _rebuild_ledger, (self.bytes_by_link, self.counters)

    def add_bytes(self, link: Link, kind: Kind, num_bytes: int) -> None:
        """Count bytes that crossed a link."""
        with self._lock:
            self.bytes_by_link[link, kind] += num_bytes

    def add_count(self, counter: str, amount: int) -> None:
        """Add to a counter."""
        with self._lock:
            self.counters[counter] += amount

    def update_max(self, counter: str, amount: int) -> None:
        """Raise a counter (``..._max``) to an amount if it is smaller."""
        with self._lock:
            self.counters[counter] = max(self.counters[counter], amount)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return bytes as ``{link: {kind: bytes}}``: every link, but only the kinds that crossed it."""
        table: dict[str, dict[str, int]] = {link.value: {} for link in Link}
        for (link, kind), num_bytes in self.bytes_by_link.items():
            table[link.value][kind.value] = num_bytes
        return table


def _rebuild_ledger(bytes_by_link: Counter[tuple[Link, Kind]], counters: Counter[str]) -> Ledger:
    return Ledger(bytes_by_link=bytes_by_link, counters=counters)


def merge_ledgers(ledgers: Iterable[Ledger]) -> Ledger:
    """Add up the counts of several workers; of ``..._max`` counters, take the maximum."""
    merged = Ledger()
    for ledger in ledgers:
        merged.bytes_by_link.update(ledger.bytes_by_link)
        for name, amount in ledger.counters.items():
            values = merged.counters[name], amount
            merged.counters[name] = max(values) if name.endswith("_max") else sum(values)
    return merged
