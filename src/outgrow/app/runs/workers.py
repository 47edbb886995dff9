"""`og.Workers`: number and settings of the workers of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from outgrow.app.runs.signals import GRACE_SECONDS
from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.graph.graph import Graph
from outgrow.graph.graph_part import require_parts_of_workers
from outgrow.runtime.system.device import DEVICES
from outgrow.runtime.system.environment import available_cores, torchrun_world_size

GRAPH = "graph"
"""Name of the store that workers map, in their scratch folder, where the graph has none of its own."""
# Each is a process that holds torch; workers of a core take turns.
_MAX_WORKERS_PER_CORE = 8


@check_arguments()
@dataclass(frozen=True, kw_only=True)
class Workers:
    """Number of workers, their device, and what to do when one dies.

    Attributes:
        number: Number of worker processes; ``Workers(4)`` sets it by position.
        device: Device that each computes on: ``"cpu"``, ``"cuda"`` for a CUDA device of its own, or
            ``"auto"``: see `outgrow.runtime.system.device.choose_device`.
        max_restarts: How often to restart all workers from the last checkpoint after one has died.
        heartbeat_seconds: Seconds without a heartbeat, at least 2, after which a worker counts as dead. Slow
            workers send heartbeats too.
        grace_seconds: How long training may go on after SIGTERM, SIGHUP or SIGUSR1, by which a scheduler asks for its
            end: to the end of the epoch, after which a checkpoint is written.
    """

    number: int = field(default=1, kw_only=False)
    device: str = "auto"
    max_restarts: int = 0
    heartbeat_seconds: float = 30.0
    grace_seconds: float = GRACE_SECONDS

    def __post_init__(self) -> None:
        validate_choice("device", self.device, dict.fromkeys(DEVICES))
        for name, what, least in (
            ("number", "the number of workers", 1),
            ("max_restarts", "the number of restarts", 0),
            ("heartbeat_seconds", "the heartbeat", 2),
            ("grace_seconds", "the grace", 0),
        ):
            value = getattr(self, name)
            # The comparison also refuses NaN and infinity, which the command line accepts as numbers.
            if not least <= value < float("inf"):
                raise InputError(
                    f"{what} is out of range", needed=f"at least {least}", got=str(value), repair=f"correct {what}"
                )


def resolve_num_workers(requested: int | None) -> int:
    """Return the number of workers: that of torchrun, if it started this process; else ``requested`` or 1.

    Raises:
        InputError: torchrun has started another number of workers than requested.
    """
    size = torchrun_world_size()
    if size and requested not in (None, size):
        raise InputError(
            "torchrun has started another number of workers",
            needed=f"{size} workers, or no number",
            got=f"{requested} workers",
            repair="leave the number of workers out: the processes of torchrun are the workers",
        )
    return size or (1 if requested is None else requested)


def resolve_workers(requested: int | Workers | None, device: object = "auto") -> Workers:
    """Return the workers to train with; ``device`` overrides theirs unless it is "auto".

    Raises:
        InputError: See `resolve_num_workers`.
    """
    named: dict[str, Any] = {} if device == "auto" else {"device": device}
    if not isinstance(requested, Workers):
        return Workers(number=resolve_num_workers(requested), **named)
    requested = replace(requested, **named)
    # One worker is the default of `Workers` and asks for nothing: torchrun's number then holds.
    return replace(requested, number=resolve_num_workers(requested.number if requested.number > 1 else None))


def resolve_prediction_workers(requested: int, device: str, graph: Graph) -> Workers:
    """Return the workers that predict, no more than there are nodes.

    Raises:
        InputError: The number or the device is no valid one, there are many more workers than cores, or torchrun has
            started this process.
    """
    workers = Workers(number=requested, device=device)
    if requested > 1 and torchrun_world_size():
        raise torchrun_error(f"{requested} workers in each of {torchrun_world_size()} processes of torchrun")
    _require_cores(workers)
    # A worker without nodes would compute nothing.
    return replace(workers, number=max(1, min(requested, graph.num_nodes)))


def torchrun_error(got: str) -> InputError:
    """Return the error of a prediction that shall run on the processes of torchrun."""
    return InputError(
        "prediction does not run under torchrun",
        needed="a single process, which starts its workers on its host",
        got=got,
        repair="start it without torchrun: `outgrow predict RUN --workers N`, or og.predict(graph, model, workers=N)",
    )


def validate_workers(graph: Graph, workers: Workers) -> None:
    """Check that the number of workers suits a graph and this machine.

    Raises:
        InputError: There are more workers than nodes, many more than cores, or restarts with only one worker.
    """
    require_parts_of_workers(graph.part, graph.name, workers.number)
    if workers.number > graph.num_nodes:
        raise InputError(
            f"{graph.name} has fewer nodes than there are workers",
            needed=f"at most {graph.num_nodes:,} workers",
            got=f"{workers.number:,} workers",
            repair="train on fewer workers",
        )
    _require_cores(workers)
    if workers.number == 1 and workers.max_restarts:
        raise InputError(
            "max_restarts needs at least 2 workers: a single one is this process itself",
            needed="at least 2 workers, or no restarts",
            got=f"1 worker, {workers.max_restarts} restarts",
            repair="leave the restarts out, or train on several workers",
        )


def _require_cores(workers: Workers) -> None:
    # A launcher of a cluster may have spread them over many machines.
    cores = available_cores()
    if workers.number > _MAX_WORKERS_PER_CORE * cores and not torchrun_world_size():
        raise InputError(
            f"there are too many workers for {cores} cores",
            needed=f"at most {_MAX_WORKERS_PER_CORE * cores} workers; best is no more than one for each core",
            got=f"{workers.number} workers",
            repair="choose fewer workers",
        )
