"""How long a worker takes for pieces of work, on a machine whose rates are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outgrow.core.types import Kind, Link
from outgrow.planning.profile import Profile
from outgrow.planning.traffic import Place


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds of one worker, while all others do as much.

    Attributes:
        profile: Of the machine.
        place: Where the workers are.
        number_bytes: Of a number that is computed with.
    """

    profile: Profile
    place: Place
    number_bytes: int

    @property
    def cores(self) -> float:
        """Of the host, for each worker."""
        return max(1.0, self.profile.host.cores / self.place.per_host)

    def products(self, rows: float, weights: float, width: float) -> float:
        """Of rows multiplied by matrices of so many numbers in all, whose narrower side is ``width``."""
        return 2 * rows * weights / (self._share * self.profile.device.product.at(max(1.0, width)))

    def sums(self, edges: float, columns: float) -> float:
        """Of rows summed over edges."""
        if not columns:
            return 0.0
        return edges * columns * self.number_bytes / (self._share * self.profile.device.aggregate.at(columns))

    def passes(self, numbers: float) -> float:
        """Of numbers read or written in order."""
        return numbers * self.number_bytes / (self._share * self.profile.device.copy)

    def calls(self, count: float) -> float:
        """Of small steps, however little they compute."""
        return count * self.profile.device.call_seconds

    def gathered(self, rows: float, row_bytes: float, columns: float) -> float:
        """Of rows taken from memory by one thread."""
        return rows * row_bytes / self.profile.host.gather.at(max(1.0, columns))

    def drawn(self, edges: float, threads: float) -> float:
        """Of edges of sampled blocks."""
        return edges / (self.profile.host.sampled_edges * threads)

    def crossing(self, moved: Mapping[tuple[Link, Kind], int], messages: Mapping[Link, float]) -> dict[Link, float]:
        """Of bytes of all workers on each link, in so many messages of each worker.

        Raises:
            KeyError: Nothing is known of a link that is crossed.
        """
        found = {}
        for link in {link for link, _ in moved}:
            rate = self.profile.links[link]
            num_bytes = sum(count for (over, _), count in moved.items() if over == link)
            found[link] = rate.seconds(num_bytes / self.place.workers, messages.get(link, 0.0))
        return found

    @property
    def _share(self) -> float:
        """Of the device's rates."""
        return 1 / self.place.per_host if self.profile.device.shared else 1.0
