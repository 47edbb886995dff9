"""Raw features of cold nodes for the device, of which it keeps some."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from outgrow.core.ledger import Kind, Link
from outgrow.engine.device_cache import DeviceCache, Places
from outgrow.engine.rows import RowStore, Waiting, Wanted
from outgrow.nn.layer import Features


class Gathered(NamedTuple):
    """Rows for a batch, of which those that are in this worker's memory are gathered.

    Attributes:
        wanted: Those that are not on the device.
        places: Where rows belong; None for all in order.
    """

    wanted: Wanted
    places: Places | None


class Gather:
    """Rows on the device: ``wait(*ask(prepare(nodes)))``. Final.

    Args:
        rows: Features of all nodes, in memory.
        num_nodes: ``V``.
    """

    def __init__(self, rows: RowStore, num_nodes: int) -> None:
        self.rows, self._num_nodes = rows, num_nodes
        self._cache: DeviceCache | None = None

    def keep(self, nodes: Tensor) -> None:
        """Keep the rows of these nodes ``[c]``, and no others. All workers together, between epochs."""
        rows = self.rows.ask(self.rows.prepare(nodes)).wait()
        self._cache = DeviceCache(self._moved(rows), nodes, self._num_nodes)

    def prepare(self, nodes: Tensor) -> Gathered:
        """Gather rows of distinct nodes ``[n]``. In any thread."""
        if self._cache is None:
            return Gathered(self.rows.prepare(nodes), None)
        missing, places = self._cache.find(nodes)
        return Gathered(self.rows.prepare(missing), places)

    def ask(self, gathered: Gathered) -> tuple[Waiting, Places | None]:
        """Ask other workers for their rows. All workers together."""
        return self.rows.ask(gathered.wanted), gathered.places

    def wait(self, waiting: Waiting, places: Places | None) -> Features:
        """``[n, D]`` on the device."""
        missing = self._moved(waiting.wait())
        if self._cache is None or places is None:
            return missing
        return self._cache.complete(missing, places, self.rows.dtype)

    def _moved(self, rows: Features) -> Features:
        """What crosses is counted, also where the CPU is the device: as it would on a GPU."""
        comm = self.rows.comm
        comm.ledger.move(Link.HOST_TO_DEVICE, Kind.FEATURES, rows.nbytes)
        return rows.to(comm.device)
