"""Train and evaluate: `fit` runs a recipe into a run folder, `evaluate` measures a network."""

import copy
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch
from torch import Tensor, nn

from rheobase.data.feed import Feed, generator
from rheobase.deploy.network import LIF
from rheobase.functional import readout
from rheobase.nn import Soma, watched
from rheobase.recipes import Recipe
from rheobase.train import checkpoint, distributed
from rheobase.train.capture import capture
from rheobase.train.checkpoint import Checkpoint, Tensors
from rheobase.train.distributed import Team
from rheobase.train.heap import keep_freed_memory
from rheobase.train.progress import Reporter, process_seconds
from rheobase.train.runs import Row, Run, load_data, open_data
from rheobase.train.step import (
    DTYPES,
    Step,
    autocast,
    learning_rate,
    loss_of,
    make_optimizer,
    make_step,
    set_learning_rate,
)

ALONE = Team()
SAVE_SECONDS = 30.0


class Interrupted(Exception):
    """Training was stopped by the user, after saving into `folder`."""

    def __init__(self, message: str, folder: Path) -> None:
        super().__init__(message)
        self.folder = folder


@dataclass(frozen=True)
class Evaluation:
    loss: float
    accuracy: float
    firing_rates: dict[str, float]
    """Mean spikes per neuron and step of every soma."""
    simulated: bool
    """Whether the data are simulated recordings."""


def fit(
    recipe: Recipe,
    *,
    data: Path | None = None,
    out: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    download: bool = False,
    reporter: Reporter | None = None,
    save_every: float = SAVE_SECONDS,
    part_bytes: int | None = None,
    began: float | None = None,
) -> Run:
    """Train `recipe` into the folder `out`, or continue the run that is there from its newest good checkpoint.

    A checkpoint is written after the epoch in which `save_every` seconds have passed, at the end, and on Ctrl-C. Its
    files above `part_bytes` are cut into parts of that size. `began` is when the work on it began, in seconds since
    the start of this process; without it, now.
    """
    began = process_seconds() if began is None else began
    if resume and out is None:
        raise ValueError("resume needs the folder of the run")
    with distributed.team(choose_device(device)) as (team, where):
        if team.world > 1 and out is None:
            raise ValueError("a run of several processes needs a folder that all can see; give one with --out")
        find = partial(load_data, recipe, data)
        if resume and out is not None:
            find = partial(open_data, recipe, Run(out).data(), data, out, resume=True)
        # a download is for one process to do, before the others look
        dataset = find(download=download) if team.leads else None
        team.wait()
        dataset = dataset or find()
        feed = Feed(dataset, recipe, where, DTYPES.get(recipe.precision, torch.float32), team.rank, team.world)
        if team.leads and not resume:
            out = Run.create(out, recipe, dataset, where).folder
        team.wait()
        assert out is not None
        run = Run(out)
        if run.recipe() != recipe:
            raise ValueError(f"{out} holds a run of another recipe; resume it with its own")
        shown = reporter if reporter and team.leads else Reporter()
        with run.claimed() if team.leads else nullcontext():
            trainer = Trainer(run, recipe, feed, team, shown, began, save_every=save_every, part_bytes=part_bytes)
            if resume and (saved := checkpoint.latest(run.checkpoints)) is not None:
                trainer.restore(saved)
            if resume and team.leads:
                run.keep_rows(trainer.step // feed.steps)
            trainer.train()
            team.wait()  # nobody leaves before the last checkpoint is written
    return run


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        other = ", or another number" if ":" in name else ""
        raise ValueError(f"device '{name}' is not available here; use auto or cpu{other}") from None
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)  # graphs and Triton use the current one
    return device


class Trainer:
    """The state of a run: network, optimiser, moving average, and how far it is."""

    def __init__(
        self,
        run: Run,
        recipe: Recipe,
        feed: Feed,
        team: Team,
        reporter: Reporter,
        began: float,
        *,
        save_every: float,
        part_bytes: int | None,
    ) -> None:
        self.save_every, self.part_bytes = save_every, part_bytes
        self.run, self.recipe, self.feed, self.team, self.reporter = run, recipe, feed, team, reporter
        self.device = device = feed.device
        torch.manual_seed(generator(recipe.seed).initial_seed())
        self.network = run.network().to(device, feed.dtype)
        torch.backends.cudnn.benchmark = True  # shapes are fixed: the fastest algorithms are worth finding
        if device.type == "cpu":
            keep_freed_memory()
        self.average = copy.deepcopy(self.network) if recipe.average else None
        self.optimizer = make_optimizer(self.network, recipe, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
        self.forward = team.wrap(self.network)
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
        timesteps, step = 0, None
        try:
            # a signal reaches the processes of a team at different steps: they stop at once instead
            with _interrupts() if self.team.world == 1 else nullcontext(threading.Event()) as interrupted:
                for epoch in range(self.step // steps, self.recipe.epochs):
                    if step is None or timesteps != self.recipe.timesteps_at(epoch):
                        timesteps = self.recipe.timesteps_at(epoch)
                        step = self._make_step(timesteps)
                    self._epoch(epoch, step, interrupted)
        finally:
            self.reporter.stop()

    def _make_step(self, timesteps: int) -> Step:
        step = make_step(self.forward, self.optimizer, self.scaler, self.recipe, timesteps, self.average)
        return capture(step, self.device) if self.team.world == 1 else step

    def _epoch(self, epoch: int, step: Step, interrupted: threading.Event) -> None:
        steps, started = self.feed.steps, time.monotonic()
        seen_before = float(self.totals[3])
        self.network.train()
        for images, labels, share in self.feed.training(epoch, first=self.step - epoch * steps):
            set_learning_rate(self.optimizer, learning_rate(self.recipe, self.step / steps))
            weight = () if self.team.world == 1 else (share,)
            self.totals[:3] += torch.stack(step(images, labels, *weight))
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
        self.totals.copy_(self.team.sum(self.totals))
        self._check_finite(float(self.totals[0]))
        row = self._row(epoch, seen_before, started)
        self._check_finite(row.get("test_loss", 0.0))  # the last update can spoil the weights after the last loss
        self.totals.zero_()
        last = epoch + 1 == self.recipe.epochs
        stopping = interrupted.is_set()  # once: a signal from here on is for the next epoch
        if self.team.leads:
            self.run.append(row)
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
            found = evaluate(self.result, self.feed, self.recipe, self.team)
            row |= {"test_loss": found.loss, "test_accuracy": found.accuracy, "firing_rates": found.firing_rates}
        return row | {"elapsed": self._elapsed()}

    def _elapsed(self) -> float:
        return self.before + process_seconds() - self.began

    def _check_finite(self, loss: float) -> None:
        if not isfinite(loss):
            raise ValueError(
                f"the loss became {loss} by step {self.step}; the last good checkpoint is in {self.run.checkpoints}; "
                "try a smaller lr or more warmup_epochs"
            )

    def save(self) -> None:
        names = {id(p): name for name, p in self.network.named_parameters()}
        training: Tensors = {"totals": self.totals}
        for parameter, state in self.optimizer.state.items():
            if state.get("momentum_buffer") is not None:
                training[f"momentum.{names[id(parameter)]}"] = state["momentum_buffer"]
        if self.average is not None:
            training |= {f"network.{name}": t for name, t in self.network.state_dict().items()}
        state = {"elapsed": self._elapsed(), "scaler": self.scaler.state_dict(), "steps_per_epoch": self.feed.steps}
        tensors = {"weights": self.result.state_dict(), "training": training}
        checkpoint.save(self.run.checkpoints, self.step, tensors, state, part_bytes=self.part_bytes)
        self.saved = time.monotonic()

    def restore(self, saved: Checkpoint) -> None:
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
        momentum = _under("momentum.", training)
        for name, parameter in self.network.named_parameters():
            if name in momentum:
                self.optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum[name])
        self.scaler.load_state_dict(saved.state["scaler"])


@torch.no_grad()
def evaluate(network: nn.Module, feed: Feed, recipe: Recipe, team: Team = ALONE) -> Evaluation:
    """Loss, accuracy and firing rates over the test images."""
    somas = {name: module for name, module in network.named_modules() if isinstance(module, Soma | LIF)}
    rates = torch.zeros(len(somas), dtype=torch.float64, device=feed.device)
    totals = torch.zeros(3, dtype=torch.float64, device=feed.device)  # loss, correct, images

    places = {name: i for i, name in enumerate(somas)}

    def count(name: str, spikes: Tensor) -> None:
        rates[places[name]] += spikes.mean(dtype=torch.float64) * spikes.shape[1]

    with watched(network, somas, count):
        for images, labels in feed.testing():
            with autocast(recipe, feed.device):
                logits = network(images, recipe.timesteps)
            totals[0] += loss_of(logits, labels, recipe) * len(labels)
            totals[1] += (readout(logits).argmax(1) == labels).sum()
            totals[2] += len(labels)
    loss, correct, n = team.sum(totals).tolist()
    firing_rates = (team.sum(rates) / n).tolist()
    rates_by_name = dict(zip(somas, firing_rates, strict=True))
    return Evaluation(loss / n, correct / n, rates_by_name, feed.info.simulated)


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
