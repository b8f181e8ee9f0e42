"""A recipe: everything that determines the outcome of a run.

It names its parts (data, network, neuron, loss, optimizer). They are built in, or your own (see `plugins`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rheobase.plugins import hint

LARGEST, LARGEST_SEED = 10**9, 2**63 - 1  # larger numbers are typos, and would overflow


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a run. The text below each field is its meaning; `rheobase recipes NAME` shows it too."""

    name: str
    """Name of the recipe. Default run folders are named after it."""
    data: str
    """Dataset to train on."""
    network: str
    """Network to train; `rheobase models` lists them."""
    timesteps: int
    """T: the number of timesteps per image, or of slices per recording."""
    epochs: int
    """Passes over the training images."""
    batch_size: int
    """Images per optimiser step, summed over all processes."""

    holdout: int = 0
    """Number of training images that replace the test images while you choose settings; always the same ones."""
    image_size: int = 0
    """Side in pixels to which your own images and recordings are resized. 0 for datasets with a fixed size."""
    slice_by: Literal["time", "count"] = "time"
    """How recordings are sliced: into slices of equal duration, or of equal event count."""
    window: int = 0
    """Microseconds (or events) per slice. 0: the dataset's default; your own recordings are cut into equal slices."""
    sensor: str = "none"
    """Width and height of the sensor, such as 346x260, for recordings that do not state it."""
    decay: float = 0.25
    """Fraction of its potential that a neuron keeps from one timestep to the next."""
    v_th: float = 0.5
    """Firing threshold of the neurons."""
    width: float = 1.0
    """Width of the surrogate gradient around the threshold."""
    surrogate: str = "rectangle"
    """Shape of the surrogate gradient: rectangle (the paper's), triangle, sigmoid or atan. Its height is 1 / width."""
    reset: Literal["hard", "soft"] = "hard"
    """What a spike does to the potential: set it to 0 (hard), or lower it by v_th (soft)."""
    reset_gradient: bool = True
    """Whether gradients flow through the reset."""
    learn_decay: Literal["none", "layer", "channel"] = "none"
    """Learn the decay, starting from `decay`: one per layer, or one per channel."""
    neuron: str = "lif"
    """Neuron model: `lif`, `relu` (no spikes), `qcfs` (no spikes, trained for conversion), or one from a plugin."""
    levels: int = 8
    """For neuron=qcfs: number of levels above 0, up to the threshold, to which activations are rounded."""

    normalisation: Literal["tdbn", "none", "neunorm"] = "tdbn"
    """Normalisation of currents: `none` is plain STBP, `neunorm` Wu et al. (2019). Only `tdbn` can be deployed."""

    optimizer: str = "sgd"
    """Optimiser: `sgd`, `adamw`, or one from a plugin."""
    lr: float = 0.1
    """Initial learning rate of the schedule."""
    momentum: float = 0.9
    """Momentum of SGD, or the first beta of AdamW."""
    nesterov: bool = False
    """Whether SGD uses Nesterov momentum."""
    weight_decay: float = 0.0
    """Weight decay of the optimiser. It does not apply to tdBN or biases."""
    schedule: Literal["step", "cosine"] = "step"
    """How the learning rate falls: in steps, or along a cosine to 0."""
    step_epochs: int = 35
    """The step schedule multiplies the learning rate by 0.1 every time this many epochs have passed."""
    warmup_epochs: float = 0.0
    """Number of initial epochs during which the learning rate rises from 0."""

    loss: str = "mean"
    """`mean`: cross-entropy of the mean output (Eq. 11-13). `steps`: mean cross-entropy over timesteps (TET)."""
    label_smoothing: float = 0.0
    """Fraction of each label that is spread over all classes."""
    freeze: Literal["none", "body"] = "none"
    """`body`: train only the head. The run must start from a trained network."""
    average: float = 0.0
    """Decay per step of the moving average of the weights, which is evaluated and saved. 0: no average."""
    short_timesteps: int = 0
    """Timesteps in the first `short_epochs` epochs."""
    short_epochs: int = 0
    """Number of initial epochs that run with `short_timesteps`."""

    padding: int = 0
    """Random crop: largest shift of an image, in pixels."""
    flip: bool = False
    """Whether to mirror half of the images at random."""
    alternate_flip: bool = False
    """Whether to mirror each image in every other epoch instead of at random, so that consecutive epochs differ."""
    time_jitter: int = 0
    """Largest random shift of an event sequence in time, in timesteps."""
    cutout: int = 0
    """Side of the square that is blanked out at a random place in every image. 0: none."""
    policy: Literal["none", "trivial"] = "none"
    """Augmentation policy. `trivial` is TrivialAugment: one random operation of random strength per image."""

    precision: Literal["fp64", "fp32", "bf16", "fp16"] = "fp32"
    """Floating-point precision of training."""
    memory: Literal["speed", "packed", "recompute"] = "speed"
    """What the backward pass keeps: everything, spikes as bits, or as little as possible. Gradients do not change."""
    statistics: Literal["joined", "local"] = "joined"
    """Batch statistics of tdBN in several processes: computed over all images, or by each process over its own."""
    deterministic: bool = False
    """Whether to use only cuDNN algorithms that give the same bits every time on a GPU. They can be slower."""
    evaluate_every: int = 1
    """Epochs between evaluations. The last epoch is always evaluated."""
    seed: int = 0
    """Random seed for weights, order of images and augmentation."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Recipe).items():
            value = getattr(self, name)
            if kind is int and type(value) is not int:
                raise ValueError(f"{name}: expected a whole number, got {value}")
            if kind is bool and type(value) is not bool:
                raise ValueError(f"{name}: expected true or false, got {value}")
            if kind is float and type(value) not in (int, float):
                raise ValueError(f"{name}: expected a number, got {value}")
            largest = LARGEST_SEED if name == "seed" else LARGEST
            if kind is int and value > largest:
                raise ValueError(f"{name}: expected at most {largest}, got {value}")
            if kind is str and (not isinstance(value, str) or not value):
                raise ValueError(f"{name}: expected a name, got {value!r}")
            if get_origin(kind) is Literal and value not in get_args(kind):
                raise ValueError(f"{name}: expected one of {', '.join(get_args(kind))}, got '{value}'")
        counts = ("timesteps", "epochs", "batch_size", "step_epochs", "evaluate_every", "levels")
        self._check("at least 1", counts, lambda v: v >= 1)
        self._check("above 0", ("lr",), lambda v: v > 0)
        self._check(f"between {1 / LARGEST} and {LARGEST}", ("v_th", "width"), lambda v: 1 / LARGEST <= v <= LARGEST)
        self._check("between 0 and 1", ("decay", "momentum", "label_smoothing", "average"), lambda v: 0 <= v <= 1)
        self._check(
            "0 or more",
            (
                "weight_decay",
                "warmup_epochs",
                "short_timesteps",
                "short_epochs",
                "padding",
                "cutout",
                "seed",
                "image_size",
                "holdout",
                "window",
                "time_jitter",
            ),
            lambda v: v >= 0,
        )
        if self.learn_decay != "none" and not 0 < self.decay < 1:
            raise ValueError(f"decay: a learnt decay must start between 0 and 1, both excluded, got {self.decay}")
        if self.neuron in ("relu", "qcfs") and self.timesteps != 1:
            raise ValueError(f"neuron={self.neuron} has no time dimension: expected timesteps=1, got {self.timesteps}")
        if self.normalisation != "tdbn" and self.neuron != "lif":
            raise ValueError(f"normalisation={self.normalisation} needs neuron=lif, got neuron={self.neuron}")
        if self.levels != Recipe.levels and self.neuron in ("lif", "relu"):
            raise ValueError(f"levels is a setting of neuron=qcfs; leave it out with neuron={self.neuron}")
        if self.short_epochs and not self.short_timesteps:
            raise ValueError("short_epochs needs short_timesteps, the number of timesteps in those epochs")
        if self.short_epochs and self.short_timesteps > self.timesteps:
            raise ValueError(f"short_timesteps: expected at most {self.timesteps}, got {self.short_timesteps}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov=true needs a momentum above 0; set momentum, or nesterov=false")
        if self.alternate_flip and not self.flip:
            raise ValueError("alternate_flip needs flip=true")

    def _check(self, what: str, names: Iterable[str], good: Callable[[Any], bool]) -> None:
        for name in names:
            value = getattr(self, name)
            if not good(value):
                raise ValueError(f"{name}: expected {what}, got {value}")
            if not -inf < value < inf:
                raise ValueError(f"{name}: expected a finite number, got {value}")

    @classmethod
    def of(cls, settings: Mapping[str, Any], source: object) -> "Recipe":
        """Return the recipe with these settings, which were read from the file `source`."""
        try:
            return cls(**settings)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{source}: not a recipe of this version of rheobase ({error})") from None

    def slicing(self) -> dict[str, int | str]:
        """Return the slicing settings that differ from the dataset's defaults."""
        chosen = {name: getattr(self, name) for name in ("slice_by", "window", "sensor")}
        return {name: value for name, value in chosen.items() if value != getattr(Recipe, name)}

    def timesteps_at(self, epoch: int) -> int:
        """Return T in this epoch; epochs count from 0."""
        return self.short_timesteps if epoch < self.short_epochs else self.timesteps

    def changed(self, settings: Iterable[str]) -> "Recipe":
        """Return a copy with `key=value` settings changed; values are given as text."""
        if isinstance(settings, str):
            raise ValueError(f"expected a list of settings, got '{settings}'; put it in brackets: ['{settings}']")
        kinds = get_type_hints(Recipe)
        changes = {}
        for setting in settings:
            key, separator, text = setting.partition("=")
            if not separator:
                raise ValueError(f"expected key=value, got '{setting}'")
            if key not in kinds or key == "name":
                valid = [f.name for f in fields(Recipe) if f.name != "name"]
                raise ValueError(f"a recipe has no setting '{key}'{hint(key, valid)}; choose one of {', '.join(valid)}")
            changes[key] = _parse(key, kinds[key], text)
        return replace(self, **changes)


def _parse(key: str, kind: Any, text: str) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{key}: expected true or false, got '{text}'")
        return text.lower() == "true"
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            expected = "a whole number" if kind is int else "a number"
            raise ValueError(f"{key}: expected {expected}, got '{text}'") from None
    return text
