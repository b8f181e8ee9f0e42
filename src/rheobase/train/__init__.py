"""Train and evaluate: `fit` runs a recipe into a run folder, `evaluate` measures a network."""

from rheobase.train.evaluation import Evaluation, evaluate
from rheobase.train.loop import choose_device, fit
from rheobase.train.progress import Reporter, reporter_for
from rheobase.train.stopping import Interrupted

__all__ = ["Evaluation", "Interrupted", "Reporter", "choose_device", "evaluate", "fit", "reporter_for"]
