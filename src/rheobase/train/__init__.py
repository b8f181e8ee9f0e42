"""Train and evaluate: `fit` runs a recipe into a run folder, `evaluate` measures a network."""

from rheobase.train.loop import Evaluation, Interrupted, choose_device, evaluate, fit
from rheobase.train.progress import Reporter

__all__ = ["Evaluation", "Interrupted", "Reporter", "choose_device", "evaluate", "fit"]
