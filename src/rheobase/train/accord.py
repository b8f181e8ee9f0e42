"""What all processes of a team do after the same step: go on, save, or save and stop.

They find out by small sums over the network of the hosts, which travel while the next steps are taken: nobody waits,
and no GPU is asked. A round begins every so many steps, and its result counts when the next one begins.
"""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rheobase.train.distributed import Team
from rheobase.train.stopping import Signals

SECONDS = 0.5  # between two rounds, about
MOST_STEPS = 100


@dataclass(frozen=True)
class Decision:
    signal: int = 0
    """That ends the training; 0 to go on."""
    save: bool = False


class Accord:
    def __init__(self, team: Team, signals: Signals) -> None:
        self.team, self.signals = team, signals
        self.left = 1  # steps until the next round
        self.began, self.steps = time.monotonic(), 0  # of the last one, and steps since
        self.round: tuple[dist.Work, torch.Tensor] | None = None

    def after_step(self, save: bool) -> Decision:
        """What all do now. The first process may wish to `save`."""
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
        """The same at once, where all wait for each other anyway."""
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
        """Of the round that is under way."""
        if self.round is None:
            return Decision()
        work, wish = self.round
        work.wait()
        self.round = None
        signal, save, self.left = wish.tolist()
        return Decision(signal, bool(save))
