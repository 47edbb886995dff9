"""Whether torchrun, or a cluster's own launcher, has started this process. Does not need torch."""

from __future__ import annotations

import os

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def group_size() -> int:
    """Number of workers of the group that this process was started for; 0 if it was started alone."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in _NAMES) else 0


def group_hosts() -> int:
    """On how many hosts the group is, by what torchrun tells each process; 1 without a group."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return max(1, -(-group_size() // here)) if here else 1


def group_leader() -> bool:
    """Whether this process was started alone, or as the first of its group."""
    return not group_size() or os.environ["RANK"] == "0"
