"""What a worker process does, and entry point of one that is not forked: ``python -m ...worker_main FOLDER RANK``."""

import os
import sys
from pathlib import Path

from outgrow.core.process import end_with_parent
from outgrow.runtime.distributed.heartbeat import Heartbeat, touch_heartbeat
from outgrow.runtime.distributed.job_files import JobFiles
from outgrow.runtime.system.environment import gc_paused_import


def main() -> None:
    """Run the worker that the command line names."""
    job_files = JobFiles(Path(sys.argv[1]))
    end_with_parent()
    run_worker(job_files, int(sys.argv[2]), job_files.read_job_spec().parent)


def run_worker(job_files: JobFiles, rank: int, parent: int) -> None:
    """Run one worker: start its heartbeat first, then import torch.

    Args:
        job_files: Files of the attempt.
        rank: Number of the worker.
        parent: Id of the process that started this one, with which it ends: see `end_with_parent`.
    """
    heartbeat = Heartbeat(lambda: touch_heartbeat(job_files.heartbeat_path(rank)), parent, job_files.run_folder)
    # The parent may have ended before the system was asked to signal its death.
    heartbeat.exit_if_orphaned()
    with heartbeat:
        _redirect_streams()
        with gc_paused_import():
            from outgrow.runtime.distributed.worker import run_task
        run_task(job_files, rank)
    heartbeat.exit_if_orphaned()


def _redirect_streams() -> None:
    """Close standard input, which may be the user's script; merge both outputs into one, in order."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
