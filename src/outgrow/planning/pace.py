"""How long a worker takes for pieces of work, on a machine whose rates are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outgrow.core.ledger import Kind, Link
from outgrow.planning.profile import FAR_BYTES, NEAR_BYTES, Profile
from outgrow.planning.rates import ByWidth
from outgrow.planning.traffic import Place


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds of one worker, while all others do as much.

    Attributes:
        profile: Of the machine.
        place: Where the workers are.
        number_bytes: Of a number that is computed with.
        memory: The most bytes that the DEVICE tier of a worker may hold.
    """

    profile: Profile
    place: Place
    number_bytes: int
    memory: int

    @staticmethod
    def of(profile: Profile, place: Place, number_bytes: int, limit: int | None = None) -> Pace:
        """Of workers at a place, each with its share of the memory, or with less."""
        memory = profile.device.memory_bytes // (place.per_host if profile.device.shared else 1)
        return Pace(profile=profile, place=place, number_bytes=number_bytes, memory=min(memory, limit or memory))

    @property
    def shared(self) -> bool:
        """Whether workers of a host share what they compute on."""
        return self.profile.device.shared

    @property
    def cores(self) -> float:
        """Of the host, for each worker."""
        return max(1.0, self.profile.host.cores / self.place.per_host)

    def products(self, rows: float, weights: float, width: float) -> float:
        """Of rows multiplied by matrices of so many numbers in all, whose narrower side is ``width``."""
        return 2 * rows * weights / (self._share * self.profile.device.product.at(max(1.0, width)))

    def sums(self, edges: float, columns: float, sources: float) -> float:
        """Of rows summed over edges in one direction, from a table of so many rows."""
        if not columns:
            return 0.0
        device, table_bytes = self.profile.device, sources * columns * self.number_bytes
        near, far = device.near.at(columns), device.far.at(columns)
        rate = ByWidth({NEAR_BYTES: near, FAR_BYTES: far}).at(max(1.0, table_bytes))
        return edges * columns * self.number_bytes / (self._share * rate)

    def finished(self, numbers: float) -> float:
        """Of numbers of outputs of layers: bias, activation, dropout, and their gradients."""
        return numbers / (self._share * self.profile.device.finish)

    def scored(self, scores: float) -> float:
        """Of scores of edges, forward and backward."""
        return scores / (self._share * self.profile.device.score)

    def made_ready(self, edges: float) -> float:
        """Of edges that are seen for the first time."""
        return edges / (self._share * self.profile.device.fresh)

    def passes(self, numbers: float) -> float:
        """Of numbers read or written in order."""
        return numbers * self.number_bytes / (self._share * self.profile.device.copy)

    def layers(self, count: float) -> float:
        """Of so many layers, however little they compute."""
        return count * self.profile.device.layer_seconds / self.profile.device.efficiency

    def gathered(self, rows: float, row_bytes: float, threads: int | None = None) -> float:
        """Of rows taken from memory by so many threads of the host."""
        columns = row_bytes / self.number_bytes
        return rows * row_bytes / (self.profile.host.gather.at(max(1.0, columns)) * self.ahead(threads))

    def drawn(self, edges: float, threads: int | None = None) -> float:
        """Of edges of sampled blocks, by so many threads of the host."""
        return edges / (self.profile.host.sampled_edges * self.ahead(threads))

    def ahead(self, threads: int | None) -> int:
        """Threads of a worker that make batches ready: half of its cores if it is not said."""
        return threads or max(1, int(self.cores) // 2)

    def crossing(self, moved: Mapping[tuple[Link, Kind], int], messages: float) -> dict[Link, float]:
        """Of bytes of all workers on each link, those between workers in so many messages of each.

        Raises:
            KeyError: Nothing is known of a link that is crossed.
        """
        found = {}
        for link in sorted({link for link, _ in moved}):
            rate = self.profile.links[link]
            num_bytes = sum(count for (over, _), count in moved.items() if over == link)
            between = link in (Link.PEER, Link.NETWORK)
            found[link] = rate.seconds(num_bytes / self.place.workers, messages if between else 0.0)
        return found

    @property
    def _share(self) -> float:
        """Of the device's rates that a worker has when it trains."""
        device = self.profile.device
        return device.efficiency / (self.place.per_host if self.shared else 1)
