"""Curves for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from outgrow.app.runs.directory import convert_write_errors
from outgrow.core.errors import InputError
from outgrow.training.trainer import EpochReport


class TensorBoardLogger:
    """Writes event files after every epoch; a context, at whose end what is left is written. Final.

    Args:
        folder: Where the event files go.
        epoch: Finished epochs; events of later ones, written before the run was resumed, become void.

    Raises:
        InputError: They cannot be written. A thread of TensorBoard's writes them, so this may come an epoch later, or
            at the end; there it does not take the place of an error that is under way.
    """

    def __init__(self, folder: Path, epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        with convert_write_errors(folder):
            self.writer = SummaryWriter(str(folder), purge_step=epoch + 1)

    def on_epoch_end(self, report: EpochReport) -> None:
        """Add a point to each curve."""
        points = {
            "loss/train": report.loss,
            "score/val": report.val_score,
            "time/epoch_seconds": report.seconds,
            "time/edges_per_second": report.edges_per_second,
            **{f"phase/{name}": seconds for name, seconds in report.phases.items()},
        }
        with convert_write_errors(self.folder):
            for name, value in points.items():
                if value is not None:
                    self.writer.add_scalar(name, value, report.epoch)

    def __enter__(self) -> TensorBoardLogger:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            with convert_write_errors(self.folder):
                self.writer.close()
        except InputError:
            if kind is None:
                raise
