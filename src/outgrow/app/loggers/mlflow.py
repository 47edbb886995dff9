"""Training curves and options for MLflow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outgrow.app.loggers.curves import epoch_points, final_points, flat_options, import_logger, step_points
from outgrow.core.arguments import check_arguments
from outgrow.training.callbacks import Callback, EndReport, EpochReport, StartReport, StepReport

_LONGEST = 500


@check_arguments()
class MLflow(Callback):
    """Callback that writes options, curves and final scores of a run to MLflow. Final. Needs the extra ``mlflow``.

    Args:
        experiment: Name of the experiment, created if there is none.
        run_name: Name of the run; None for one that MLflow makes.
        tracking_uri: Where MLflow writes, such as ``"sqlite:///mlflow.db"``; None for its own setting.
        tags: Tags of the run.
        steps: Whether to write curves of steps too, where an epoch has several.
        run_id: A run of MLflow to go on with; None for a new one.

    Attributes:
        run_id: Id of the run in MLflow, once training has begun: the same object goes on with it in a resumed run.
    """

    def __init__(
        self,
        experiment: str = "outgrow",
        *,
        run_name: str | None = None,
        tracking_uri: str | Path | None = None,
        tags: Mapping[str, str] | None = None,
        steps: bool = False,
        run_id: str | None = None,
    ) -> None:
        self.experiment = experiment
        self.run_name = run_name
        self.tracking_uri = None if tracking_uri is None else str(tracking_uri)
        self.tags = dict(tags or {})
        self.steps = steps
        self.run_id = run_id
        self._client: Any = None

    def on_start(self, report: StartReport) -> None:
        """Create the run, and write the options.

        Raises:
            InputError: MLflow is not installed.
        """
        mlflow = import_logger("mlflow", "mlflow")
        # A client of its own: what the program itself logs to MLflow stays apart.
        self._client = mlflow.MlflowClient(tracking_uri=self.tracking_uri)
        if self.run_id is None:
            found = self._client.get_experiment_by_name(self.experiment)
            number = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
            run = self._client.create_run(number, run_name=self.run_name, tags=self.tags)
            self.run_id = run.info.run_id
            options = {"strategy": report.strategy, "workers": report.workers, **flat_options(report.options)}
            params = [mlflow.entities.Param(name, str(value)[:_LONGEST]) for name, value in options.items()]
            self._client.log_batch(self.run_id, params=params)
        else:
            self._client.update_run(self.run_id, status="RUNNING")

    def on_step(self, report: StepReport) -> None:
        """Write the points of a step."""
        if self.steps and report.steps_per_epoch > 1:
            self._write_points(step_points(report), report.total_steps)

    def on_epoch(self, report: EpochReport) -> None:
        """Write the points of an epoch."""
        self._write_points(epoch_points(report), report.epoch)

    def on_end(self, report: EndReport) -> None:
        """Write the scores of the final model, and end the run."""
        self._write_points(final_points(report), report.epochs)
        self._client.set_terminated(self.run_id, "KILLED" if report.stop_reason == "interrupted" else "FINISHED")
        self._client = None

    def _write_points(self, points: Mapping[str, float], step: int) -> None:
        metric = import_logger("mlflow", "mlflow").entities.Metric
        now = int(1000 * time.time())
        # MLflow allows fewer signs in names.
        named = {name.replace("&", "and").replace("+", "and"): value for name, value in points.items()}
        self._client.log_batch(self.run_id, [metric(name, value, now, step) for name, value in named.items()])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}
