"""Training curves and options for Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outgrow.app.loggers.curves import epoch_points, final_points, flat_options, import_logger, step_points
from outgrow.core.arguments import check_arguments
from outgrow.training.callbacks import Callback, EndReport, EpochReport, StartReport, StepReport


@check_arguments()
class WandB(Callback):
    """Callback that writes options, curves and final scores of a run to Weights & Biases. Final.

    It needs the extra ``wandb``.

    Args:
        project: Name of the project.
        name: Name of the run; None for one that W&B makes.
        folder: Folder of W&B's files; None for the current one.
        mode: ``"online"``, ``"offline"`` (files alone, for ``wandb sync``) or ``"disabled"``; None for
            W&B's own setting.
        steps: Whether to write curves of steps too, where an epoch has several.
        run_id: A run of W&B to go on with; None for a new one.

    Attributes:
        run_id: Id of the run in W&B, once training has begun: the same object goes on with it in a resumed run.
    """

    def __init__(
        self,
        project: str = "outgrow",
        *,
        name: str | None = None,
        folder: str | Path | None = None,
        mode: str | None = None,
        steps: bool = False,
        run_id: str | None = None,
    ) -> None:
        self.project = project
        self.name = name
        self.folder = None if folder is None else str(folder)
        self.mode = mode
        self.steps = steps
        self.run_id = run_id
        self._run: Any = None

    def on_start(self, report: StartReport) -> None:
        """Begin the run, and write the options.

        Raises:
            InputError: W&B is not installed.
        """
        wandb = import_logger("wandb", "wandb")
        options = {"strategy": report.strategy, "workers": report.workers, **flat_options(report.options)}
        self._run = wandb.init(
            project=self.project,
            name=self.name,
            dir=self.folder,
            mode=self.mode,
            id=self.run_id,
            resume=None if self.run_id is None else "allow",
            config=options,
            reinit="create_new",
        )
        self.run_id = self._run.id
        # Curves have an axis of their own, since W&B's steps only count calls.
        self._run.define_metric("epoch")
        self._run.define_metric("step")
        self._run.define_metric("step/*", step_metric="step")
        for group in ("loss", "score", "time", "phase"):
            self._run.define_metric(f"{group}/*", step_metric="epoch")

    def on_step(self, report: StepReport) -> None:
        """Write the points of a step."""
        if self.steps and report.steps_per_epoch > 1:
            self._run.log({"step": report.total_steps, **step_points(report)})

    def on_epoch(self, report: EpochReport) -> None:
        """Write the points of an epoch."""
        self._run.log({"epoch": report.epoch, **epoch_points(report)})

    def on_end(self, report: EndReport) -> None:
        """Write the scores of the final model, and end the run."""
        self._run.summary.update({**final_points(report), "stopped": report.stop_reason})
        self._run.finish(exit_code=1 if report.stop_reason == "interrupted" else 0)
        self._run = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}
