"""`og.Workers`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_type_hints

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice, validate_types
from outgrow.graph.graph import Graph
from outgrow.runtime.system.device import DEVICES
from outgrow.runtime.system.environment import torchrun_world_size


@dataclass(frozen=True, kw_only=True)
class Workers:
    """How many workers train, on what, and when they are given up.

    Attributes:
        number: Number of worker processes; ``Workers(4)`` will do.
        device: What each computes on: ``"cpu"``, ``"cuda"`` for a CUDA device of its own, or ``"auto"``: see
            `outgrow.runtime.system.device.choose_device`.
        max_restarts: How often all of them are started again, from the last checkpoint, after one has died.
        heartbeat_seconds: A worker that was silent for so long is taken for dead, 2 at least. A slow one is not silent.
    """

    number: int = field(default=1, kw_only=False)
    device: str = "auto"
    max_restarts: int = 0
    heartbeat_seconds: float = 30.0

    def __post_init__(self) -> None:
        validate_types(asdict(self), get_type_hints(Workers))
        validate_choice("device", self.device, dict.fromkeys(DEVICES))
        for name, what, least in (
            ("number", "the number of workers", 1),
            ("max_restarts", "the number of restarts", 0),
            ("heartbeat_seconds", "the heartbeat", 2),
        ):
            value = getattr(self, name)
            if not least <= value < float("inf"):
                raise InputError(
                    f"{what} is out of range", needed=f"at least {least}", got=str(value), repair=f"correct {what}"
                )


def resolve_num_workers(requested: int | None) -> int:
    """Number of workers: that of torchrun's processes, if it has started this one; else as asked for, or 1.

    Raises:
        InputError: Another number was asked for than torchrun has started.
    """
    size = torchrun_world_size()
    if size and requested not in (None, size):
        raise InputError(
            "torchrun has started another number of workers",
            needed=f"{size} workers, or no number at all",
            got=f"{requested} workers",
            repair="leave the number of workers out: the processes of torchrun are the workers",
        )
    return size or (1 if requested is None else requested)


def resolve_workers(requested: int | Workers | None, device: object = "auto") -> Workers:
    """The workers that are meant: see `resolve_num_workers`; a ``device`` that is named goes before their own."""
    named: dict[str, Any] = {} if device == "auto" else {"device": device}
    if not isinstance(requested, Workers):
        return Workers(number=resolve_num_workers(requested), **named)
    requested = replace(requested, **named)
    return replace(requested, number=resolve_num_workers(requested.number if requested.number > 1 else None))


def validate_workers(graph: Graph, workers: Workers) -> None:
    """Check that a graph can be dealt out to workers.

    Raises:
        InputError: There are more workers than nodes, or one worker that shall be started again.
    """
    if workers.number > graph.num_nodes:
        raise InputError(
            f"{graph.name} has fewer nodes than there are workers",
            needed=f"at most {graph.num_nodes:,} workers",
            got=f"{workers.number:,} workers",
            repair="train on fewer workers",
        )
    if workers.number == 1 and workers.max_restarts:
        raise InputError(
            "one worker cannot be started again: it is this process",
            needed="2 workers at least, or no restarts",
            got=f"1 worker, {workers.max_restarts} restarts",
            repair="leave the restarts out, or train on several workers",
        )
