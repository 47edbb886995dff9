"""Training curves for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from outgrow.app.loggers.curves import epoch_points, final_points, step_points
from outgrow.app.runs.directory import convert_write_errors
from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.training.callbacks import Callback, EndReport, EpochReport, StartReport, StepReport

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

STEPS = "steps"
"""Folder of the curves of steps, which TensorBoard shows as a run of its own: they count batches, not epochs."""


@check_arguments()
class TensorBoard(Callback):
    """Callback that writes TensorBoard event files after every epoch, and curves of steps where an epoch has several.

    Final. A run with a directory has one already, for the folder ``tensorboard`` in it.

    Args:
        folder: Folder of the event files. A run that is resumed goes on in the same one: points of epochs that are
            trained again become void.
        steps: Whether to write curves of steps too.

    Raises:
        InputError: Event files cannot be written. A thread of TensorBoard writes them, so the error may come an epoch
            later or at the end, where it does not replace an error that is already being raised.
    """

    def __init__(self, folder: str | Path, *, steps: bool = True) -> None:
        self.folder = Path(folder)
        self.steps = steps
        self._epochs: SummaryWriter | None = None
        self._steps: SummaryWriter | None = None

    def on_start(self, report: StartReport) -> None:
        """Open the event files."""
        from torch.utils.tensorboard import SummaryWriter

        with convert_write_errors(self.folder):
            # TensorBoard hides the events of earlier sessions from this step on.
            self._epochs = SummaryWriter(str(self.folder), purge_step=report.epoch + 1)
            if self.steps and report.steps_per_epoch > 1:
                first = report.epoch * report.steps_per_epoch + 1
                self._steps = SummaryWriter(str(self.folder / STEPS), purge_step=first)

    def on_step(self, report: StepReport) -> None:
        """Add a point to each curve of steps."""
        if self._steps is not None:
            self._add_points(self._steps, step_points(report), report.total_steps)

    def on_epoch(self, report: EpochReport) -> None:
        """Add a point to each curve."""
        if self._epochs is not None:
            self._add_points(self._epochs, epoch_points(report), report.epoch)

    def on_end(self, report: EndReport) -> None:
        """Write the scores of the final model, and the rest."""
        if self._epochs is not None:
            self._add_points(self._epochs, final_points(report), report.epochs)
        self.close()

    def close(self) -> None:
        """Write the rest."""
        writers = [writer for writer in (self._epochs, self._steps) if writer is not None]
        self._epochs = self._steps = None
        with convert_write_errors(self.folder):
            for writer in writers:
                writer.close()

    def _add_points(self, writer: SummaryWriter, points: dict[str, float], step: int) -> None:
        with convert_write_errors(self.folder):
            for name, value in points.items():
                writer.add_scalar(name, value, step)

    def __getstate__(self) -> dict[str, Any]:
        # Open files stay where they are.
        return {**self.__dict__, "_epochs": None, "_steps": None}

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            self.close()
        except InputError:
            # Training that failed for another reason, such as a full disk, shows that reason first.
            if kind is None:
                raise
