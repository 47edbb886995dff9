"""How workers agree that the device of one of them has refused memory.

A worker whose device refuses memory cannot take part in the exchange that the others wait for. So all of them vote
before each: the one that failed votes from where it caught its error, and the others leave the step too.
"""

from __future__ import annotations

from outgrow.runtime.distributed.comm import Comm


class PeerOutOfMemoryError(RuntimeError):
    """The device of another worker has refused memory."""


class MemoryVotes:
    """The votes of one worker. All workers vote equally often, in the same order. Final.

    Args:
        comm: Communicator.
        retries: Whether a step is repeated where memory is refused; else nobody votes.
    """

    def __init__(self, comm: Comm, *, retries: bool) -> None:
        self._comm = comm
        self._votes = retries and comm.size > 1
        self.retries = retries

    def check(self) -> None:
        """Vote that all is well; to be called before workers wait for one another.

        Raises:
            PeerOutOfMemoryError: Another worker has voted otherwise.
        """
        if self._votes and any(self._comm.all_gather_object(False)):
            raise PeerOutOfMemoryError("the device of another worker is out of memory")

    def report_failure(self) -> None:
        """Vote that the own device has refused memory; the others then leave their step."""
        if self._votes:
            self._comm.all_gather_object(True)
