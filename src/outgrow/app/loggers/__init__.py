"""`og.loggers`: callbacks that write curves of a run for TensorBoard, MLflow and Weights & Biases."""

from outgrow.app.loggers.mlflow import MLflow as MLflow
from outgrow.app.loggers.tensorboard import TensorBoard as TensorBoard
from outgrow.app.loggers.wandb import WandB as WandB

__all__ = ["MLflow", "TensorBoard", "WandB"]
