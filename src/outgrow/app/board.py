"""Curves for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from outgrow.training.trainer import EpochReport


class Board:
    """Writes event files after every epoch. Final.

    Args:
        folder: Where the event files go.
        epoch: Finished epochs; events of later ones, written before the run was resumed, become void.
    """

    def __init__(self, folder: Path, epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=epoch + 1)

    def epoch(self, report: EpochReport) -> None:
        """Add a point to each curve."""
        points = {
            "loss/train": report.loss,
            "score/val": report.val_score,
            "time/epoch_seconds": report.seconds,
            "time/edges_per_second": report.edges_per_second,
            **{f"phase/{name}": seconds for name, seconds in report.phases.items()},
        }
        for name, value in points.items():
            if value is not None:
                self.writer.add_scalar(name, value, report.epoch)

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()
