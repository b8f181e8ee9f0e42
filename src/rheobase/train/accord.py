"""Let all processes of a team agree what to do after a step: continue, save, or save and stop.

The processes reduce a few numbers over the network of the hosts. This happens while the next steps run: nothing waits,
and the GPUs are not involved. A round starts every few steps, and its result takes effect when the next one starts.
"""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rheobase.train.distributed import Team
from rheobase.train.stopping import Signals

SECONDS = 0.5  # between two rounds, approximately
MOST_STEPS = 100


@dataclass(frozen=True)
class Decision:
    """What all processes do now."""

    signal: int = 0
    """Signal that ends training; 0 to continue."""
    save: bool = False


class Accord:
    """The rounds in which a team decides."""

    def __init__(self, team: Team, signals: Signals) -> None:
        self.team, self.signals = team, signals
        self.left = 1  # steps until the next round
        self.began, self.steps = time.monotonic(), 0  # when the last round started, and steps since
        self.round: tuple[dist.Work, torch.Tensor] | None = None

    def after_step(self, save: bool) -> Decision:
        """Return what all processes do now. The first process may ask to `save`."""
        if self.team.world == 1:
            return Decision(self.signals.number, save)
        self.left, self.steps = self.left - 1, self.steps + 1
        if self.left:
            return Decision()
        self.left = 1
        found = self._result()
        self._begin(save and not found.save)
        return found

    def settle(self, save: bool = False) -> Decision:
        """Return the decision at once, at a point where all processes wait for each other anyway."""
        if self.team.world == 1:
            return Decision(self.signals.number, save)
        self._result()
        self._begin(save)
        return self._result()

    def _begin(self, save: bool) -> None:
        now = time.monotonic()
        pace = int(SECONDS * self.steps / max(now - self.began, 1e-6))
        self.began, self.steps = now, 0
        wishes = (save, min(max(pace, 1), MOST_STEPS)) if self.team.leads else (False, 0)
        wish = torch.tensor([self.signals.number, *wishes])
        self.round = dist.all_reduce(wish, dist.ReduceOp.MAX, group=self.team.hosts, async_op=True), wish

    def _result(self) -> Decision:
        """Wait for the round in progress and return its decision."""
        if self.round is None:
            return Decision()
        work, wish = self.round
        work.wait()
        self.round = None
        signal, save, self.left = wish.tolist()
        return Decision(signal, bool(save))
