"""A run at work: its network, optimiser and moving average, step by step and epoch by epoch."""

import copy
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from rheobase.data.feed import Feed
from rheobase.train import checkpoint
from rheobase.train.best import Best
from rheobase.train.capture import capture, release
from rheobase.train.checkpoint import Checkpoint, Tensors
from rheobase.train.distributed import Team
from rheobase.train.evaluation import evaluate
from rheobase.train.freezing import freeze, train_mode
from rheobase.train.optimizers import make_optimizer, set_learning_rate
from rheobase.train.parts import Parts
from rheobase.train.progress import Reporter, process_seconds
from rheobase.train.runs import Row, Run
from rheobase.train.step import Step, learning_rate, make_step
from rheobase.train.switches import cudnn


class Interrupted(Exception):
    """Training was stopped by the user, after saving into `folder`."""

    def __init__(self, message: str, folder: Path) -> None:
        super().__init__(message)
        self.folder = folder


class Trainer:
    """The state of a run: network, optimiser, moving average, and how far it is."""

    def __init__(
        self,
        run: Run,
        network: nn.Module,
        parts: Parts,
        feed: Feed,
        team: Team,
        reporter: Reporter,
        began: float,
        *,
        save_every: float,
        part_bytes: int | None,
    ) -> None:
        self.save_every, self.part_bytes = save_every, part_bytes
        self.run, self.recipe, self.parts, self.feed, self.team = run, run.recipe, parts, feed, team
        self.reporter = reporter
        self.device = device = feed.device
        recipe = self.recipe
        self.network = network.to(device, feed.dtype)
        freeze(self.network, recipe)
        self.summed = team.join(self.network, recipe.statistics)
        self.average = copy.deepcopy(self.network) if recipe.average else None
        self.optimizer = make_optimizer(self.network, recipe, device, parts.optimizer)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
        self.best = Best(run, part_bytes) if team.leads and run.best.is_dir() else None
        self.step = 0
        self.began, self.before = began, 0.0  # before: seconds that earlier processes worked on this run
        self.saved = time.monotonic()
        self.totals = torch.zeros(4, dtype=torch.float64, device=device)  # of the epoch: loss, correct, norm, images

    @property
    def result(self) -> nn.Module:
        """The network that is evaluated and kept."""
        return self.network if self.average is None else self.average

    def train(self) -> None:
        steps = self.feed.steps
        self.reporter.start(self.run.folder, self.recipe.epochs, steps, self.step)
        if self.best is not None:
            self.best.write()  # a kill may have come before it
        timesteps, step = 0, None
        try:
            # a signal reaches the processes of a team at different steps: they stop at once instead
            stopping = _interrupts() if self.team.world == 1 else nullcontext(threading.Event())
            with cudnn(benchmark=True), stopping as interrupted:
                for epoch in range(self.step // steps, self.recipe.epochs):
                    if step is None or timesteps != self.recipe.timesteps_at(epoch):
                        timesteps = self.recipe.timesteps_at(epoch)
                        step = self._make_step(timesteps)
                    self._epoch(epoch, step, interrupted)
                self.run.interrupted = interrupted.is_set()
        finally:
            self.reporter.stop()
            release(step)

    def _make_step(self, timesteps: int) -> Step:
        step = make_step(
            self.network,
            self.optimizer,
            self.scaler,
            self.recipe,
            timesteps,
            self.average,
            loss=self.parts.loss,
            classes=len(self.feed.info.classes),
            summed=self.summed,
        )
        return capture(step, self.device, self.team.all_agree)

    def _epoch(self, epoch: int, step: Step, interrupted: threading.Event) -> None:
        steps, started = self.feed.steps, time.monotonic()
        seen_before = float(self.totals[3])
        train_mode(self.network, self.recipe)
        for images, labels, share in self.feed.training(epoch, first=self.step - epoch * steps):
            set_learning_rate(self.optimizer, learning_rate(self.recipe, self.step / steps))
            self.totals[:3] += torch.stack(step(images, labels, share))
            self.totals[3] += len(labels)
            self.step += 1
            if interrupted.is_set() and self.step < (epoch + 1) * steps:
                self._check_finite(float(self.totals[0]))
                self.save()
                self._stop()
            if self.reporter.due():
                loss, correct, _, seen = self.totals.tolist()
                speed = self.team.world * (seen - seen_before) / (time.monotonic() - started)
                self.reporter.step(self.step, loss / seen, correct / seen, speed)
        for network in dict.fromkeys((self.network, self.result)):  # in the same order in all processes
            self.team.average_buffers(network, self.recipe.statistics)
        self.totals.copy_(self.team.sum(self.totals))
        self._check_finite(float(self.totals[0]))
        row = self._row(epoch, seen_before, started)
        self._check_finite(row.get("test_loss", 0.0))  # the last update can spoil the weights after the last loss
        self.totals.zero_()
        last = epoch + 1 == self.recipe.epochs
        stopping = interrupted.is_set()  # once: a signal from here on is for the next epoch
        if self.team.leads:
            self.run.append(row)
            if self.best is not None:
                self.best.see(row, self.result)
            if last or stopping or time.monotonic() - self.saved >= self.save_every:
                self.save()
            self.reporter.epoch(row)
        if stopping and not last:
            self._stop()

    def _stop(self) -> NoReturn:
        raise Interrupted(f"stopped at step {self.step} of {self.recipe.epochs * self.feed.steps}", self.run.folder)

    def _row(self, epoch: int, seen_before: float, started: float) -> Row:
        loss, correct, norm, seen = self.totals.tolist()
        seconds = time.monotonic() - started
        row: Row = {
            "epoch": epoch + 1,
            "step": self.step,
            "timesteps": self.recipe.timesteps_at(epoch),
            "lr": learning_rate(self.recipe, (self.step - 1) / self.feed.steps),
            "loss": loss / seen,
            "train_accuracy": correct / seen,
            "gradient_norm": norm / self.team.world / self.feed.steps,
            "images_per_second": (seen - seen_before * self.team.world) / seconds,
            "seconds": seconds,
        }
        if (epoch + 1) % self.recipe.evaluate_every == 0 or epoch + 1 == self.recipe.epochs:
            found = evaluate(self.result, self.feed, self.recipe, self.team, loss=self.parts.loss)
            row |= {"test_loss": found.loss, "test_accuracy": found.accuracy, "firing_rates": found.firing_rates}
        return row | {"elapsed": self._elapsed()}

    def _elapsed(self) -> float:
        return self.before + process_seconds() - self.began

    def _check_finite(self, loss: float) -> None:
        if not isfinite(loss):
            kept = self.run.checkpoints
            good = f"the last good checkpoint is in {kept}; " if checkpoint.newest_step(kept) else ""
            raise ValueError(
                f"the loss became {loss} by step {self.step}; {good}try a smaller lr or more warmup_epochs"
            )

    def save(self) -> None:
        training: Tensors = {"totals": self.totals}
        numbers = {}
        for place, value in self._optimizer_state():
            if isinstance(value, Tensor):
                training[f"optimizer.{place}"] = value
            else:
                numbers[place] = value
        if self.average is not None:
            training |= {f"network.{name}": t for name, t in self.network.state_dict().items()}
        state = {
            "elapsed": self._elapsed(),
            "scaler": self.scaler.state_dict(),
            "steps_per_epoch": self.feed.steps,
            "optimizer": numbers,
        }
        tensors = {"weights": self.result.state_dict(), "training": training}
        if self.best is not None:
            tensors["best"], state["best"] = self.best.weights, self.best.row
        checkpoint.save(self.run.checkpoints, self.step, tensors, state, part_bytes=self.part_bytes)
        self.run.begun()
        if self.best is not None:
            self.best.write()
        self.saved = time.monotonic()

    def restore(self, saved: Checkpoint) -> None:
        if saved.step == 0:  # the weights that it starts from, and nothing else
            for network in {self.network, self.result}:
                network.load_state_dict(saved.weights)
            return
        if "training" not in saved.tensors:
            raise ValueError(f"{self.run} has weights but no state of a training; start from it with --from instead")
        training, steps = saved.tensors["training"], saved.state.get("steps_per_epoch", self.feed.steps)
        if steps != self.feed.steps:
            raise ValueError(
                f"{self.run.folder} took {steps} steps per epoch, here it would take {self.feed.steps}; "
                "resume it with the data and the number of processes that it began with"
            )
        self.step, self.before = saved.step, saved.state["elapsed"]
        self.totals.copy_(training["totals"])
        self.totals[[0, 1, 3]] /= self.team.world  # they will be added up, but norms averaged
        self.result.load_state_dict(saved.tensors["weights"])
        if self.average is not None:
            self.network.load_state_dict(_under("network.", training))
        self._restore_optimizer(_under("optimizer.", training) | saved.state.get("optimizer", {}))
        self.scaler.load_state_dict(saved.state["scaler"])
        if self.best is not None:
            self.best.restore(saved)

    def _optimizer_state(self) -> Iterator[tuple[str, Any]]:
        """What the optimiser keeps, for every parameter and group, by a name."""
        state, names = self.optimizer.state_dict(), self._optimised()
        places = [(names[i], own) for i, own in state["state"].items()]
        places += [(f"group{i}", group) for i, group in enumerate(state["param_groups"])]
        for place, values in places:
            for key, value in values.items():
                if key in ("params", "lr") or value is None:
                    continue
                plain = all(isinstance(v, bool | int | float | str) for v in _items(value))
                if not plain and not isinstance(value, Tensor):
                    raise ValueError(
                        f"optimizer '{self.recipe.optimizer}' keeps a {type(value).__name__} as {key}, which a "
                        "checkpoint cannot hold; let it keep tensors and numbers"
                    )
                yield f"{place}.{key}", value

    def _restore_optimizer(self, saved: dict[str, Any]) -> None:
        parameters, state = dict(self.network.named_parameters()), {}
        for i, name in enumerate(self._optimised()):
            like, own = parameters[name], _under(f"{name}.", saved)
            state[i] = {
                # in the memory order of the parameter, as the optimiser made it
                key: torch.empty_like(like).copy_(v) if isinstance(v, Tensor) and v.shape == like.shape else v
                for key, v in own.items()
            }
        groups = self.optimizer.state_dict()["param_groups"]
        for i, group in enumerate(groups):
            own = _under(f"group{i}.", saved)
            group |= {key: tuple(v) if isinstance(group.get(key), tuple) else v for key, v in own.items()}
        self.optimizer.load_state_dict({"state": {i: s for i, s in state.items() if s}, "param_groups": groups})

    def _optimised(self) -> list[str]:
        """The names of the parameters in the order of the optimiser's state."""
        names = {id(p): name for name, p in self.network.named_parameters()}
        return [names[id(p)] for group in self.optimizer.param_groups for p in group["params"]]


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _under(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C or a termination signal sets; a second one stops at once.

    An exception in the middle of an optimiser step would leave half of the weights updated.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handler(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, old in before.items():
            signal.signal(number, old)
