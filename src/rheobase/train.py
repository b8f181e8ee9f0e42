"""Train and evaluate: `fit` runs a recipe into a run folder, `evaluate` measures a network."""

import copy
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn

from rheobase import checkpoint
from rheobase.checkpoint import Checkpoint, Tensors
from rheobase.data import load
from rheobase.data.feed import Feed, generator
from rheobase.functional import readout
from rheobase.nn import Soma
from rheobase.progress import Reporter
from rheobase.recipes import Recipe
from rheobase.runs import Row, Run
from rheobase.step import autocast, learning_rate, loss_of, make_optimizer, make_step, set_learning_rate


class Interrupted(Exception):
    """Training was stopped by the user, after saving."""


@dataclass(frozen=True)
class Evaluation:
    loss: float
    accuracy: float
    firing_rates: dict[str, float]
    """Mean spikes per neuron and step of every soma."""


def fit(
    recipe: Recipe,
    *,
    data: Path | None = None,
    out: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    reporter: Reporter | None = None,
) -> Run:
    """Train `recipe` into the folder `out`, or continue the run that is there."""
    where = choose_device(device)
    dataset = load(recipe.data, data)
    if resume:
        if out is None:
            raise ValueError("resume needs the folder of the run")
        run = Run(out)
        if run.recipe() != recipe:
            raise ValueError(f"{out} holds a run of another recipe; resume it with its own")
    else:
        run = Run.create(out, recipe, dataset, where)
    dtype = torch.float64 if recipe.precision == "fp64" else torch.float32
    trainer = Trainer(run, recipe, Feed(dataset, recipe, where, dtype), where, reporter or Reporter())
    if resume:
        trainer.restore(run.latest())
    trainer.train()
    return run


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"device '{name}' is not available here; use auto, cpu or cuda") from None
    return device


class Trainer:
    """The state of a run: network, optimiser, moving average, and how far it is."""

    def __init__(self, run: Run, recipe: Recipe, feed: Feed, device: torch.device, reporter: Reporter) -> None:
        self.run, self.recipe, self.feed, self.device, self.reporter = run, recipe, feed, device, reporter
        torch.manual_seed(generator(recipe.seed).initial_seed())
        self.network = run.network().to(device, feed.dtype)
        if device.type == "cuda":
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.average = copy.deepcopy(self.network) if recipe.average else None
        self.optimizer = make_optimizer(self.network, recipe, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
        self.step = 0
        self.totals = torch.zeros(4, dtype=torch.float64, device=device)  # of the epoch: loss, correct, norm, images

    @property
    def result(self) -> nn.Module:
        """The network that is evaluated and kept."""
        return self.network if self.average is None else self.average

    def train(self) -> None:
        steps = self.feed.steps
        self.reporter.start(self.recipe.epochs, steps, self.step)
        try:
            with _interrupts() as interrupted:
                for epoch in range(self.step // steps, self.recipe.epochs):
                    self._epoch(epoch, interrupted)
        finally:
            self.reporter.stop()

    def _epoch(self, epoch: int, interrupted: threading.Event) -> None:
        steps, started = self.feed.steps, time.monotonic()
        timesteps = self.recipe.timesteps_at(epoch)
        step = make_step(self.network, self.optimizer, self.scaler, self.recipe, timesteps, self.average)
        images_before = float(self.totals[3])
        self.network.train()
        for images, labels, share in self.feed.training(epoch, first=self.step - epoch * steps):
            set_learning_rate(self.optimizer, learning_rate(self.recipe, self.step / steps))
            self.totals[:3] += torch.stack(step(images, labels, share))
            self.totals[3] += len(labels)
            self.step += 1
            if interrupted.is_set():
                self._check_finite(epoch)
                self.save()
                raise Interrupted(f"stopped at step {self.step} of {self.recipe.epochs * steps}")
            if self.reporter.due():
                loss, correct, _, seen = self.totals.tolist()
                speed = (seen - images_before) / (time.monotonic() - started)
                self.reporter.step(self.step, loss / seen, correct / seen, speed)
        self._check_finite(epoch)
        row = self._row(epoch, images_before, started)
        self.run.append(row)
        self.totals.zero_()
        self.save()
        self.reporter.epoch(row)

    def _row(self, epoch: int, images_before: float, started: float) -> Row:
        loss, correct, norm, seen = self.totals.tolist()
        seconds = time.monotonic() - started
        row: Row = {
            "epoch": epoch + 1,
            "step": self.step,
            "timesteps": self.recipe.timesteps_at(epoch),
            "lr": learning_rate(self.recipe, (self.step - 1) / self.feed.steps),
            "loss": loss / seen,
            "train_accuracy": correct / seen,
            "gradient_norm": norm / self.feed.steps,
            "images_per_second": (seen - images_before) / seconds,
            "seconds": seconds,
        }
        if (epoch + 1) % self.recipe.evaluate_every == 0 or epoch + 1 == self.recipe.epochs:
            found = evaluate(self.result, self.feed, self.recipe)
            row |= {"test_loss": found.loss, "test_accuracy": found.accuracy, "firing_rates": found.firing_rates}
        return row

    def _check_finite(self, epoch: int) -> None:
        if not isfinite(float(self.totals[0])):
            raise ValueError(
                f"the loss became {float(self.totals[0])} in epoch {epoch + 1}, step {self.step}; the last good "
                f"checkpoint is in {self.run.checkpoints}; try a smaller lr or more warmup_epochs"
            )

    def save(self) -> None:
        names = {id(p): name for name, p in self.network.named_parameters()}
        training: Tensors = {"totals": self.totals}
        for parameter, state in self.optimizer.state.items():
            if state.get("momentum_buffer") is not None:
                training[f"momentum.{names[id(parameter)]}"] = state["momentum_buffer"]
        if self.average is not None:
            training |= {f"network.{name}": t for name, t in self.network.state_dict().items()}
        state = {"step": self.step, "scaler": self.scaler.state_dict()}
        tensors = {"weights": self.result.state_dict(), "training": training}
        checkpoint.save(self.run.checkpoints, self.step, tensors, state)

    def restore(self, saved: Checkpoint) -> None:
        training = saved.tensors["training"]
        self.step = saved.step
        self.totals.copy_(training["totals"])
        self.result.load_state_dict(saved.tensors["weights"])
        if self.average is not None:
            self.network.load_state_dict(_under("network.", training))
        momentum = _under("momentum.", training)
        for name, parameter in self.network.named_parameters():
            if name in momentum:
                buffer = momentum[name].to(self.device).clone(memory_format=torch.preserve_format)
                self.optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffer)
        self.scaler.load_state_dict(saved.state["scaler"])
        self.run.keep_rows(self.step // self.feed.steps)


@torch.no_grad()
def evaluate(network: nn.Module, feed: Feed, recipe: Recipe) -> Evaluation:
    """Loss, accuracy and firing rates over the test images."""
    somas = {name: module for name, module in network.named_modules() if isinstance(module, Soma)}
    rates = {name: torch.zeros((), dtype=torch.float64, device=feed.device) for name in somas}
    totals = torch.zeros(3, dtype=torch.float64, device=feed.device)  # loss, correct, images

    def count(name: str) -> object:
        def hook(module: nn.Module, inputs: object, spikes: Tensor) -> None:
            rates[name] += spikes.mean(dtype=torch.float32) * spikes.shape[1]

        return hook

    handles = [soma.register_forward_hook(count(name)) for name, soma in somas.items()]  # type: ignore[arg-type]
    was_training = network.training
    network.eval()
    try:
        for images, labels in feed.testing():
            with autocast(recipe, feed.device):
                logits = network(images, recipe.timesteps)
            totals[0] += loss_of(logits, labels, recipe) * len(labels)
            totals[1] += (readout(logits).argmax(1) == labels).sum()
            totals[2] += len(labels)
    finally:
        network.train(was_training)
        for handle in handles:
            handle.remove()
    loss, correct, n = totals.tolist()
    return Evaluation(loss / n, correct / n, {name: float(rate) / n for name, rate in rates.items()})


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


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
