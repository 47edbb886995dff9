"""`Optimization`: what becomes of gradients. Accumulation, clipping, the optimizer, its schedule, averaged weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from outgrow.core.errors import InputError
from outgrow.training.checkpoint_checks import check_loop_state, check_tensors_fit, require_plain
from outgrow.training.config import TrainConfig
from outgrow.training.loop_options import describe_loop
from outgrow.training.node_embeddings import NodeEmbeddings
from outgrow.training.optimizers import load_optimizer_state
from outgrow.training.schedules import Schedule


class Optimization:
    """Applies gradients to a model. Every worker has one; all do the same with the same gradients. Final.

    A step of a loop: the gradient of a batch is in ``.grad`` of every parameter, summed over all workers; then
    `step_batch`. An epoch ends with `flush` and, after its evaluation, `end_epoch`.

    Args:
        model: The model.
        optimizer: The optimizer of its parameters.
        schedule: Schedule of the learning rates; None for constant ones.
        clip_grad_norm: Largest L2 norm of the gradient of all parameters together, to which a larger one is scaled
            (`torch.nn.utils.clip_grad_norm_`); None for no limit.
        accumulate: Number of batches of an optimizer step. Its gradient is the mean over all their seeds, as if they
            were one batch.
        ema: Decay of the exponential moving average of the weights (`torch.optim.swa_utils`); None for none.
        signature: Description of all of this, by which checkpoints are told apart.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule | None = None,
        *,
        clip_grad_norm: float | None = None,
        accumulate: int = 1,
        ema: float | None = None,
        signature: str = "",
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule
        self.clip_grad_norm = clip_grad_norm
        self.accumulate = accumulate
        self.ema = ema
        self.signature = signature
        # The rates and decays that were asked for, which the schedule changes.
        self._asked = [(group.get("initial_lr", group["lr"]), group.get("weight_decay")) for group in self._groups]
        self._parameters = dict(model.named_parameters())
        self._sums: dict[str, Tensor] = {}
        self._num_batches = self._num_seeds = 0
        self._averages: dict[str, Tensor] = {}
        self._has_stepped = False
        self._embeddings: NodeEmbeddings | None = None

    @staticmethod
    def from_config(
        config: TrainConfig, model: nn.Module, steps_per_epoch: int, *, larger_is_better: bool = True
    ) -> Optimization:
        """Make what a config asks for.

        Args:
            config: Options of training.
            model: The model.
            steps_per_epoch: Number of batches of an epoch.
            larger_is_better: Direction of the validation value that a schedule may read.

        Raises:
            InputError: Something of it cannot be made for this model and this number of batches.
        """
        if config.accumulate > steps_per_epoch:
            raise InputError(
                "more batches are to be accumulated than an epoch has",
                needed=f"accumulate at most {steps_per_epoch}: an optimizer step never spans two epochs",
                got=f"accumulate {config.accumulate}",
                repair="set it lower, or choose smaller batches",
            )
        optimizer = config.make_optimizer(model)
        schedule = config.make_schedule(
            optimizer, -(-steps_per_epoch // config.accumulate), larger_is_better=larger_is_better
        )
        if schedule is not None:
            require_plain("schedule", schedule.state_dict())
        return Optimization(
            model,
            optimizer,
            schedule,
            clip_grad_norm=config.clip_grad_norm,
            accumulate=config.accumulate,
            ema=config.ema,
            signature=describe_loop(config),
        )

    def attach_embeddings(self, embeddings: NodeEmbeddings) -> None:
        """Update these node embeddings too, in every step, with their own optimizer and the schedule's rate.

        Raises:
            InputError: Averaged weights, or gradients of several batches of a whole graph, are asked for.
        """
        if embeddings:
            embeddings.require_steps(ema=self.ema, accumulate=self.accumulate)
            self._embeddings = embeddings

    @property
    def _rate_factor(self) -> float:
        """What the schedule has made of the first rate."""
        return self.lr / float(self._asked[0][0])

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @property
    def lr(self) -> float:
        """Current learning rate, of the first group of parameters."""
        return float(self._groups[0]["lr"])

    @property
    def needs_score(self) -> bool:
        """Whether the schedule reads the monitored value of the validation set."""
        return self.schedule is not None and self.schedule.needs_score

    def step_batch(self, num_seeds: int) -> bool:
        """Take in the gradient of a batch, and clear it; return whether the parameters have changed.

        Args:
            num_seeds: Number of seeds whose mean loss has this gradient; 0 if there is none.
        """
        # A step without links has no gradient: momentum must not move the parameters for it.
        if num_seeds == 0:
            return False
        if self.accumulate > 1:
            self._add_gradient(num_seeds)
            if self._num_batches < self.accumulate:
                return False
            self._step(self._take_mean())
        else:
            self._step()
        return True

    def flush(self) -> bool:
        """Take the step of batches that are left at the end of an epoch; return whether there were some."""
        if self._num_batches == 0:
            return False
        self._step(self._take_mean())
        return True

    def discard_batches(self) -> None:
        """Forget the gradients of batches whose step is not complete: their epoch begins again."""
        if self._embeddings is not None:
            self._embeddings.clear_gradients()
        self._sums = {}
        self._num_batches = self._num_seeds = 0

    def end_epoch(self, monitored: float | None = None) -> None:
        """Advance a schedule of epochs, after the evaluation: its value is ``monitored``, None if there was none."""
        if self.schedule is not None:
            self.schedule.advance_epoch(monitored)

    def _step(self, embedding_scale: float = 1.0) -> None:
        if self.clip_grad_norm is not None:
            embedding_scale *= self._clip_gradients(self.clip_grad_norm, embedding_scale)
        self.optimizer.step()
        if self._embeddings is not None:
            rate = self._embeddings.optimizer.lr * self._rate_factor
            self._embeddings.update(lr=rate, scale=embedding_scale)
        if not self._has_stepped:
            # An optimizer of the user may keep anything, once it has made a step.
            require_plain("optimizer", self.optimizer.state_dict())
            self._has_stepped = True
        # Those too that are in no group: backward adds to what is there.
        self._clear_gradients()
        if self.schedule is not None:
            self.schedule.advance_step()
        if self.ema is not None:
            self._update_averages(self.ema)

    def _clip_gradients(self, limit: float, embedding_scale: float) -> float:
        """Scale all gradients to a norm of at most ``limit``; return the factor for those of node embeddings."""
        parameters = self._parameters.values()
        if self._embeddings is None:
            # After the sum over all workers, whose gradients are equal: so is the norm.
            nn.utils.clip_grad_norm_(parameters, limit)
            return 1.0
        grads = [each.grad for each in parameters if each.grad is not None]
        factor = self._embeddings.clip_factor(limit, grads, embedding_scale)
        if grads:
            torch._foreach_mul_(grads, factor)
        return factor

    def _clear_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    def _add_gradient(self, num_seeds: int) -> None:
        # A sum of its own: the sum over the workers would count what stayed in `.grad` once for each.
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                share = parameter.grad.detach() * num_seeds
                self._sums[name] = self._sums[name].add_(share) if name in self._sums else share
        if self._embeddings is not None:
            self._embeddings.scale_batch(num_seeds)
        self._clear_gradients()
        self._num_batches += 1
        self._num_seeds += num_seeds

    def _take_mean(self) -> float:
        """Make the sums of gradients means; return the factor that does so for those of node embeddings."""
        for name, total in self._sums.items():
            self._parameters[name].grad = total.div_(self._num_seeds)
        factor = 1 / self._num_seeds
        self._sums = {}
        self._num_batches = self._num_seeds = 0
        return factor

    @torch.no_grad()
    def _update_averages(self, decay: float) -> None:
        if not self._averages:
            # As `AveragedModel` does: the average begins with the weights after the first step.
            self._averages = {name: each.detach().clone() for name, each in self._parameters.items()}
            return
        averages = list(self._averages.values())
        torch._foreach_lerp_(averages, [each.detach() for each in self._parameters.values()], 1 - decay)

    @property
    def averages(self) -> Mapping[str, Tensor]:
        """Averaged weights by name; empty without ``ema``, and before the first step."""
        return self._averages

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Context in which the model has the averaged weights, if there are any."""
        kept = {name: each.detach().clone() for name, each in self._parameters.items()} if self._averages else {}
        self._copy_weights(self._averages)
        try:
            yield
        finally:
            self._copy_weights(kept)

    @torch.no_grad()
    def _copy_weights(self, weights: Mapping[str, Tensor]) -> None:
        # In place: strategies may hold the parameters.
        for name, value in weights.items():
            self._parameters[name].copy_(value)

    def adopt_averages(self) -> None:
        """Give the model the averaged weights, if there are any."""
        self._copy_weights(self._averages)

    def loop_state(self) -> dict[str, Any]:
        """Return all that checkpoints need beside the states of the model and the optimizer."""
        return {
            "signature": self.signature,
            "asked": [list(map(_to_number, each)) for each in self._asked],
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "sums": dict(self._sums),
            "num_batches": self._num_batches,
            "num_seeds": self._num_seeds,
            "averages": dict(self._averages),
        }

    def load_loop_state(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a state, with the learning rates and weight decays of this object, after the optimizer's state.

        A rate that has changed since changes a schedule in proportion.

        Args:
            state: From `loop_state`; None for a checkpoint of an earlier version, which had constant rates only.

        Raises:
            TypeError: The state is another one than `loop_state` returns.
            InputError: It is that of another optimizer or schedule.
        """
        if state is None and (self.schedule or self.ema or self.accumulate > 1):
            self.validate_signature({"signature": "an optimizer alone"})
        if state is not None:
            self.validate_signature(state)
            check_loop_state(state, None if self.schedule is None else self.schedule.state_dict())
            for name in ("sums", "averages"):
                check_tensors_fit(state[name], self._parameters)
            if self.schedule is not None:
                self.schedule.load_state_dict(state["schedule"])
            self._sums = self._to_devices(state["sums"])
            self._num_batches, self._num_seeds = state["num_batches"], state["num_seeds"]
            self._averages = self._to_devices(state["averages"])
        # The state of the optimizer brought its own; the user may want to continue with others, such as a lower rate.
        before = self._asked if state is None else state["asked"]
        for group, (_, decay) in zip(self._groups, self._asked, strict=True):
            if decay is not None:
                group["weight_decay"] = decay
        if self.schedule is None:
            for group, (rate, _) in zip(self._groups, self._asked, strict=True):
                group["lr"] = rate
        else:
            pairs = zip(self._asked, before, strict=True)
            factors = [1.0 if new == old else float(new) / old for (new, _), (old, _) in pairs]
            if any(factor != 1.0 for factor in factors):
                self.schedule.scale_rates(factors)

    def validate_signature(self, state: Mapping[str, Any]) -> None:
        """Check that a state is one of the same optimizer, schedule and averages.

        Raises:
            InputError: It is not.
        """
        if state.get("signature") != self.signature:
            raise InputError(
                "the run cannot go on with another optimizer or schedule",
                needed=f"as the run was started: {str(state.get('signature'))[:500]}",
                got=self.signature,
                repair="give the same options, or start a new run",
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer and of all else, for a loop that writes checkpoints of its own."""
        return {"optimizer": self.optimizer.state_dict(), "loop": self.loop_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: see `load_loop_state`."""
        load_optimizer_state(self.optimizer, state["optimizer"])
        self.load_loop_state(state["loop"])

    def _to_devices(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: value.to(self._parameters[name].device, self._parameters[name].dtype, copy=True)
            for name, value in tensors.items()
        }


def _to_number(value: Any) -> Any:
    return value if value is None else float(value)
