"""Training curves for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from outgrow.app.runs.directory import convert_write_errors
from outgrow.core.errors import InputError
from outgrow.training.trainer import EpochReport


class TensorBoardLogger:
    """Context that writes TensorBoard event files after every epoch, and the rest on exit. Final.

    Args:
        folder: Folder of the event files.
        epoch: Number of finished epochs; events of later ones, written before the run was resumed, become void.

    Raises:
        InputError: Event files cannot be written. A thread of TensorBoard writes them, so the error may come
            an epoch later or on exit, where it does not replace an error that is already being raised.
    """

    def __init__(self, folder: Path, epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        with convert_write_errors(folder):
            # TensorBoard hides the events of earlier sessions from this step on.
            self.writer = SummaryWriter(str(folder), purge_step=epoch + 1)

    def on_epoch_end(self, report: EpochReport) -> None:
        """Add a point to each curve."""
        points = {
            "loss/train": report.loss,
            "score/val": report.val_score,
            "time/epoch_seconds": report.seconds,
            "time/edges_per_second": report.edges_per_second,
            **{f"val/{name}": value for name, value in report.scores.items()},
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
            # Training that failed for another reason, such as a full disk, shows that reason first.
            if kind is None:
                raise
