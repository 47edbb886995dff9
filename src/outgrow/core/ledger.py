"""`Link`, `Kind`, `Ledger`: bytes moved and counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock


class Link(StrEnum):
    """A pair of places or workers that bytes cross."""

    DISK_TO_HOST = "disk_to_host"
    HOST_TO_DEVICE = "host_to_device"
    DEVICE_TO_HOST = "device_to_host"
    PEER = "peer"
    NETWORK = "network"


class Kind(StrEnum):
    """What the bytes on a link are."""

    FEATURES = "features"
    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"
    TOPOLOGY = "topology"
    IDS = "ids"
    METRICS = "metrics"


@dataclass(frozen=True, kw_only=True, eq=False)
class Ledger:
    """Counts of one run. Several threads may count.

    Attributes:
        bytes_by_link: Bytes by link and kind.
        counters: Other counts by name, such as ``edges_aggregated`` and ``rows_computed``.
    """

    bytes_by_link: Counter[tuple[Link, Kind]] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    def __reduce__(self) -> tuple[Callable[..., Ledger], tuple[object, ...]]:
        """Without the lock."""
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
        """Keep the largest value of a counter (``..._max``)."""
        with self._lock:
            self.counters[counter] = max(self.counters[counter], amount)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Bytes as ``{link: {kind: bytes}}``, every link named, kinds that crossed it only."""
        table: dict[str, dict[str, int]] = {link.value: {} for link in Link}
        for (link, kind), num_bytes in self.bytes_by_link.items():
            table[link.value][kind.value] = num_bytes
        return table


def _rebuild_ledger(bytes_by_link: Counter[tuple[Link, Kind]], counters: Counter[str]) -> Ledger:
    return Ledger(bytes_by_link=bytes_by_link, counters=counters)


def merge_ledgers(ledgers: Iterable[Ledger]) -> Ledger:
    """The counts of several workers as those of one run. What is a largest value (``..._max``) stays one."""
    whole = Ledger()
    for ledger in ledgers:
        whole.bytes_by_link.update(ledger.bytes_by_link)
        for name, amount in ledger.counters.items():
            both = whole.counters[name], amount
            whole.counters[name] = max(both) if name.endswith("_max") else sum(both)
    return whole
