"""Train a run, step by step and epoch by epoch."""

import copy
import time
import warnings
from contextlib import suppress
from math import isfinite
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from rheobase.data.feed import Feed
from rheobase.train import checkpoint, optimizer_state
from rheobase.train.accord import Accord
from rheobase.train.best import Best, Epoch
from rheobase.train.capture import capture, release
from rheobase.train.checkpoint import Checkpoint, Tensors
from rheobase.train.distributed import Team
from rheobase.train.evaluation import evaluate
from rheobase.train.freezing import freeze, train_mode
from rheobase.train.optimizers import make_optimizer, set_learning_rate
from rheobase.train.parts import Parts
from rheobase.train.progress import Reporter, process_seconds
from rheobase.train.rehearsal import rehearse
from rheobase.train.runs import Row, Run
from rheobase.train.step import Step, for_device, learning_rate, make_step
from rheobase.train.stopping import Interrupted, Signals
from rheobase.train.switches import cudnn_for
from rheobase.train.writing import Writer

SOME = 3  # names in a message


class NotFinite(ValueError):
    """A loss, gradient or weight is NaN or infinite, which ends the run."""


class Trainer:
    """The state of a run in training: network, optimiser, moving average, and the step that it has reached."""

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
        self.run, self.parts, self.feed, self.team = run, parts, feed, team
        self.reporter = reporter
        self.device = device = feed.device
        self.recipe = recipe = for_device(run.recipe, device)
        self.network = network.to(device, feed.dtype)
        freeze(self.network, recipe)
        self.summed = team.join(self.network, recipe.statistics)
        self.average = copy.deepcopy(self.network) if recipe.average else None
        self.networks = [*dict.fromkeys((self.network, self.result))]  # one or two, in this order in all processes
        self.optimizer = make_optimizer(self.network, recipe, device, parts.optimizer)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
        self.best = Best(run, part_bytes) if team.leads and run.best.is_dir() else None
        self.step = self.saved_step = 0
        self.looked = False  # at which parameters have gradients
        self.proofs: dict[int, Tensor] = {}  # for the last two checkpoints: whether the step after it was finite
        self.writer = Writer(device)
        self.began, self.before = began, 0.0  # before: seconds that earlier processes worked on this run
        self.saved = time.monotonic()
        self.totals = torch.zeros(4, dtype=torch.float64, device=device)  # in this epoch: loss, correct, norm, images

    @property
    def result(self) -> nn.Module:
        """The network that is evaluated and kept."""
        return self.network if self.average is None else self.average

    def train(self, signals: Signals) -> None:
        """Train until the last epoch, or until a signal stops the run."""
        steps, accord = self.feed.steps, Accord(self.team, signals)
        timesteps, step = 0, None
        if self.best is not None:
            self.best.write(self.best.epoch)  # a kill may have come before this was done
        self.make_room()
        self.reporter.start(self.run.folder, self.recipe.epochs, steps, self.step)
        try:
            with cudnn_for(self.recipe), signals.kept_for_later():
                for epoch in range(self.step // steps, self.recipe.epochs):
                    if step is None or timesteps != self.recipe.timesteps_at(epoch):
                        timesteps = self.recipe.timesteps_at(epoch)
                        step = self._make_step(timesteps)
                    self._epoch(epoch, step, accord)
                self.writer.wait()
                self.run.interrupted = accord.settle().signal
        except NotFinite as error:  # in all processes
            if not self.team.leads:
                self.team.confer(True)  # fails when the first process has reported the error and ended
            raise ValueError(f"{error}; {self._advice()}") from None
        finally:
            release(step)  # first, as the group must end after it, and another signal may skip the rest
            self.reporter.stop()
            self.writer.close()

    def _make_step(self, timesteps: int) -> Step:
        rehearse(self.network, self.recipe, self.feed, timesteps)
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

    def _epoch(self, epoch: int, step: Step, accord: Accord) -> None:
        steps, started = self.feed.steps, time.monotonic()
        seen_before = float(self.totals[3])
        train_mode(self.network, self.recipe)
        for images, labels, share in self.feed.training(epoch, first=self.step - epoch * steps):
            set_learning_rate(self.optimizer, learning_rate(self.recipe, self.step / steps))
            self.totals[:3] += torch.stack(step(images, labels, share))
            self.totals[3] += len(labels)
            self.step += 1
            if self.step == self.saved_step + 1:
                self._prove()
            if not self.looked:
                self._warn_of_the_untrained()
            self.writer.look()
            if self.step < (epoch + 1) * steps:
                decision = accord.after_step(save=self.save_every > 0 and self._due())
                if decision.signal:
                    self._stop(decision.signal)
                if decision.save:
                    self.save()
            if self.reporter.due():
                loss, correct, _, seen = self.team.read(self.totals)
                speed = self.team.world * (seen - seen_before) / (time.monotonic() - started)
                self.reporter.step(self.step, loss / seen, correct / seen, speed)
        self._average_buffers()
        self.totals.copy_(self.team.sum(self.totals))
        self._check_finite(self.team.read(self.totals))
        row = self._row(epoch, seen_before, started)
        found = row.get("test_loss", 0.0)
        if not isfinite(found):  # the last update may spoil weights after the last training loss
            raise NotFinite(f"the test loss became {found} by step {self.step}")
        self.totals.zero_()
        last = epoch + 1 == self.recipe.epochs
        decision = accord.settle(save=last or self._due())  # once; a later signal counts in the next epoch
        if self.team.leads:
            self.run.append(row)
            if self.best is not None:
                self.best.see(row, self.result)
        if decision.save or decision.signal:
            self.save()
        if self.team.leads:
            self.reporter.epoch(row)
        if decision.signal and not last:
            self._stop(decision.signal)

    def _average_buffers(self) -> None:
        """Replace the buffers that each process computes from its own images by their averages."""
        for network in self.networks:
            for name, average in self.team.averaged_buffers(network, self.recipe.statistics).items():
                network.get_buffer(name).copy_(average)

    def _weights(self, network: nn.Module) -> Tensors:
        """Return what a checkpoint keeps of a network. The network stays unchanged, however often it is saved."""
        inside = self.step % self.feed.steps  # at the end of an epoch, all buffers are equal already
        averages = self.team.averaged_buffers(network, self.recipe.statistics) if inside else {}
        return {name: averages.get(name, tensor) for name, tensor in network.state_dict().items()}

    def _due(self) -> bool:
        return time.monotonic() - self.saved >= self.save_every

    def _stop(self, number: int) -> NoReturn:
        self._check_finite(self.team.read(self.team.sum(self.totals)))
        self.save()
        self.writer.wait()
        self.team.wait()  # no process ends before the checkpoint is written
        done = f"stopped at step {self.step} of {self.recipe.epochs * self.feed.steps}"
        raise Interrupted(done, self.run.folder, number)

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
            "images_per_second": (seen - seen_before) / seconds,
            "seconds": seconds,
        }
        if (epoch + 1) % self.recipe.evaluate_every == 0 or epoch + 1 == self.recipe.epochs:
            found = evaluate(self.result, self.feed, self.recipe, self.team, loss=self.parts.loss)
            row |= {"test_loss": found.loss, "test_accuracy": found.accuracy, "firing_rates": found.firing_rates}
            row |= {"input_rates": found.input_rates} if found.input_rates else {}
        return row | {"elapsed": self._elapsed()}

    def _elapsed(self) -> float:
        return self.before + process_seconds() - self.began

    def _check_finite(self, totals: list[float]) -> None:
        """Raise `NotFinite` if any loss or gradient of the epoch was not finite: then their sums are not either."""
        loss, _, norm, _ = totals
        for what, value in (("loss", loss), ("norm of the gradients", norm)):
            if not isfinite(value):
                raise NotFinite(f"the {what} became {value} by step {self.step}")

    def _prove(self) -> None:
        """Keep, without waiting for it, whether all numbers are finite after the first step from a checkpoint.

        The weights in a checkpoint may be finite but lead to results that are not. One step shows it.
        """
        tensors = [t for network in self.networks for t in (*network.parameters(), *network.buffers())]
        sound = torch.stack([t.isfinite().all() for t in (*tensors, self.totals)]).all()
        self.proofs = dict([*self.proofs.items(), (self.saved_step, sound)][-2:])

    def _warn_of_the_untrained(self) -> None:
        """Name parameters that the first step left without a gradient: the network learns, but less than it seems."""
        self.looked = True
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        left = [name for name, p in trained.items() if p.grad is None]
        if left and self.team.leads:
            names = ", ".join(left[:SOME]) + (", ..." if left[SOME:] else "")
            warnings.warn(
                f"no gradient reaches {len(left)} of {len(trained)} parameters, so they will not be trained: {names}; "
                "look for parts that are not used, detach, no_grad, or spikes without a surrogate",
                stacklevel=2,
            )

    def _advice(self) -> str:
        """Return what to do about numbers that are not finite. Set aside a checkpoint that led to them.

        The checkpoint before it was good: otherwise the next one would not have been written.
        """
        with suppress(ValueError, OSError):
            self.writer.wait()
        kept = self.run.checkpoints
        if self.team.leads and (newest := checkpoint.newest_step(kept)):
            proof = self.proofs.get(newest)
            if proof is None or not proof:
                checkpoint.put_aside(checkpoint.place(kept, newest))
        last = checkpoint.newest_step(kept)
        good = f"the last good checkpoint is {checkpoint.place(kept, last)}; " if last else ""
        return f"{good}try a smaller lr or more warmup_epochs"

    def make_room(self) -> None:
        """Reserve memory for checkpoints before it is needed."""
        if self.team.leads:
            weights = self.network.state_dict()  # twice, for momentum too; it grows if an optimiser keeps more
            others = {"random": torch.get_rng_state()}
            self.writer.reserve(weights, weights, {} if self.average is None else weights, others)

    def save(self) -> None:
        """Start to write a checkpoint while training continues. All processes of a team call this; the first writes."""
        self.saved = time.monotonic()
        if self.saved_step == self.step:
            return
        self.saved_step = self.step
        weights = {network: self._weights(network) for network in self.networks}
        totals = self.team.sum(self.totals)
        if not self.team.leads:
            return
        totals = torch.cat([totals[:2], totals[2:3] / self.team.world, totals[3:]])  # norms are equal in all processes
        training: Tensors = {"totals": totals, "random": torch.get_rng_state()}  # dropout in a user's network draws
        numbers = {}
        for place, value in optimizer_state.kept(self.optimizer, self.network, self.recipe.optimizer):
            if isinstance(value, Tensor):
                training[f"optimizer.{place}"] = value
            else:
                numbers[place] = value
        if self.average is not None:
            training |= {f"network.{name}": t for name, t in weights[self.network].items()}
        state = {
            "elapsed": self._elapsed(),
            "scaler": self.scaler.state_dict(),
            "steps_per_epoch": self.feed.steps,
            "optimizer": numbers,
        }
        step, best = self.step, None if self.best is None else self.best.epoch
        tensors = {"weights": weights[self.result], "training": training}
        self.writer.begin(tensors, lambda copies: self._write(step, copies, state, best))

    def _write(self, step: int, tensors: dict[str, Tensors], state: dict[str, Any], best: Epoch | None) -> None:
        """Write the copies, in a thread. Never write weights that are not finite."""
        self._check_finite(tensors["training"]["totals"].tolist())
        own = optimizer_state.under("network.", tensors["training"])  # if `weights` are a moving average
        if not all(map(_finite, [*tensors["weights"].values(), *own.values()])):
            raise NotFinite(f"weights are no longer finite after step {step}")
        if best is not None:
            tensors, state = {**tensors, "best": best.weights}, {**state, "best": best.row}
        checkpoint.save(self.run.checkpoints, step, tensors, state, part_bytes=self.part_bytes)
        self.run.begun()
        if self.best is not None and best is not None:
            self.best.write(best)

    def restore(self, saved: Checkpoint) -> None:
        """Continue from a checkpoint."""
        if saved.step == 0:  # only the weights to start from
            for network in self.networks:
                network.load_state_dict(saved.weights)
            return
        if "training" not in saved.tensors:
            raise ValueError(f"{self.run} has weights but no training state; start from it with --from instead")
        training = saved.tensors["training"]
        self.feed.keep_steps(saved.state.get("steps_per_epoch", self.feed.steps), self.run)
        self.step = self.saved_step = saved.step
        self.before = saved.state["elapsed"]
        self.totals.copy_(training["totals"])
        if not self.team.leads:
            self.totals[[0, 1, 3]] = 0  # these are summed over processes; norms are averaged
        self.result.load_state_dict(saved.tensors["weights"])
        if self.average is not None:
            self.network.load_state_dict(optimizer_state.under("network.", training))
        kept = optimizer_state.under("optimizer.", training) | saved.state.get("optimizer", {})
        optimizer_state.restore(self.optimizer, self.network, kept)
        if saved.state["scaler"]:  # empty if the run did not compute in fp16 before
            self.scaler.load_state_dict(saved.state["scaler"])
        if "random" in training:  # older checkpoints have none
            try:
                torch.set_rng_state(training["random"])
            except (RuntimeError, TypeError):
                raise ValueError(f"checkpoint {saved.path} is damaged: its random state does not fit") from None
        if self.best is not None:
            self.best.restore(saved)


def _finite(tensor: Tensor) -> bool:
    """Return whether all values are finite. NumPy, because torch would start more threads beside those of training."""
    if not tensor.is_floating_point():
        return True
    wide = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    return bool(np.isfinite(wide.numpy()).all())
