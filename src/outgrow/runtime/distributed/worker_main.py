"""Run one worker of a run: ``python -m outgrow.runtime.distributed.worker_main JOB RANK``, started by `launch_kernel`."""

import os
import sys
from pathlib import Path

from outgrow.core.process import end_with_parent
from outgrow.runtime.distributed.heartbeat import Heartbeat, touch_heartbeat
from outgrow.runtime.distributed.job_files import JobFiles
from outgrow.runtime.system.environment import gc_paused_import


def main() -> None:
    """Run one worker: its signs of life first, then torch."""
    scratch, rank = JobFiles(Path(sys.argv[1])), int(sys.argv[2])
    heartbeat = Heartbeat(
        lambda: touch_heartbeat(scratch.heartbeat_path(rank)), scratch.read_job_spec().parent, scratch.run_folder
    )
    end_with_parent()
    heartbeat.exit_if_orphaned()  # it may have ended before
    with heartbeat:
        _redirect_streams()
        with gc_paused_import():
            from outgrow.runtime.distributed.worker import run_task
        run_task(scratch, rank)
    heartbeat.exit_if_orphaned()


def _redirect_streams() -> None:
    """Read nothing, since standard input may be the user's script; write both outputs to one place, in order."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
