"""What a recipe is: everything that decides the outcome of a training run.

Its parts (data, network, neuron, loss, optimizer) are names on the shelves of `plugins`: ours, or yours.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, Literal, get_args, get_origin, get_type_hints

LARGEST, LARGEST_SEED = 10**9, 2**63 - 1  # numbers above are a slip of the hand, and overflow somewhere


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a run. What stands below a field is its meaning, here and in `rheobase recipes NAME`."""

    name: str
    """Of the recipe; runs without a folder of their own are called after it."""
    data: str
    """Data set."""
    network: str
    """Network; `rheobase models` lists ours."""
    timesteps: int
    """T: steps that the network takes for one image, or slices of a recording."""
    epochs: int
    """Passes over the training images."""
    batch_size: int
    """Images per optimiser step, over all processes together."""

    holdout: int = 0
    """Training images to test on in the place of the test images, to choose settings by; always the same ones."""
    image_size: int = 0
    """Side that images of a folder are resized to, and recordings; 0 for data sets with a size of their own."""
    slice_by: Literal["time", "count"] = "time"
    """What the slices of a recording have in common: their duration, or their number of events."""
    window: int = 0
    """Microseconds (or events) of a slice; 0: as the data set has it, for your own recordings all of one in slices."""
    sensor: str = "none"
    """Width and height of the sensor, like 346x260, of recordings that do not state theirs."""
    decay: float = 0.25
    """Share of its potential that a neuron keeps from one step to the next."""
    v_th: float = 0.5
    """Threshold above which a neuron fires."""
    width: float = 1.0
    """Width of the surrogate: how far from the threshold a spike has a gradient."""
    surrogate: str = "rectangle"
    """The derivative of a spike: rectangle (the paper's), triangle, sigmoid or atan, as high as 1 / width."""
    reset: Literal["hard", "soft"] = "hard"
    """After a spike the potential is 0, or lower by v_th."""
    reset_gradient: bool = True
    """Whether the reset takes part in the gradient."""
    learn_decay: Literal["none", "layer", "channel"] = "none"
    """Learn the decay from its value on: one for a layer, or one for each of its channels."""
    neuron: str = "lif"
    """What the network's somas are made of; `relu`: the twin without spikes, `qcfs`: one to be converted to spikes."""
    levels: int = 8
    """Of neuron=qcfs: steps between 0 and the threshold, to which activations are rounded."""

    normalisation: Literal["tdbn", "none", "neunorm"] = "tdbn"
    """Of what a neuron receives: `none` is STBP as it was, `neunorm` that of Wu et al. (2019); neither is deployed."""

    optimizer: str = "sgd"
    """Optimiser: `sgd`, `adamw`, or one of a plugin."""
    lr: float = 0.1
    """Learning rate that the schedule starts from."""
    momentum: float = 0.9
    """Of SGD; the first beta of AdamW."""
    nesterov: bool = False
    """Nesterov's momentum, for SGD."""
    weight_decay: float = 0.0
    """Weight decay of the optimiser; tdBN and biases have none."""
    schedule: Literal["step", "cosine"] = "step"
    """How the learning rate falls: in steps, or along a cosine to 0."""
    step_epochs: int = 35
    """The step schedule multiplies the learning rate by 0.1 every so many epochs."""
    warmup_epochs: float = 0.0
    """Epochs in which the learning rate rises from 0."""

    loss: str = "mean"
    """`mean`: cross-entropy of the mean output (Eq. 11-13); `steps`: mean of the cross-entropies of all steps (TET)."""
    label_smoothing: float = 0.0
    """Share of a label that is spread over all classes."""
    freeze: Literal["none", "body"] = "none"
    """`body`: only the head is trained, of a network that starts from a trained one."""
    average: float = 0.0
    """Decay per step of the moving average of weights that is evaluated and kept; 0: no average."""
    short_timesteps: int = 0
    """Timesteps in the first `short_epochs` epochs."""
    short_epochs: int = 0
    """How many epochs at the beginning run with `short_timesteps` steps."""

    padding: int = 0
    """Random crop: images move by up to so many pixels."""
    flip: bool = False
    """Mirror half of the images."""
    alternate_flip: bool = False
    """Mirror every image in every other epoch, instead of at random: no two epochs in a row look alike."""
    time_jitter: int = 0
    """Event sequences begin up to so many steps earlier or later."""
    cutout: int = 0
    """Side of the square that is blanked out at a random place of every image; 0: none."""
    policy: Literal["none", "trivial"] = "none"
    """`trivial` is TrivialAugment: one random operation of random strength per image."""

    precision: Literal["fp64", "fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the step."""
    memory: Literal["speed", "packed", "recompute"] = "speed"
    """What is kept for the backward pass: all, spikes as bits, or as little as possible; gradients are the same."""
    statistics: Literal["joined", "local"] = "joined"
    """Of several processes, tdBN normalises by the images of all together, or each by its own."""
    deterministic: bool = False
    """On a GPU, only algorithms of cuDNN that give the same bits every time; slower."""
    evaluate_every: int = 1
    """Epochs between two evaluations; the last epoch is always evaluated."""
    seed: int = 0
    """Of all random numbers: weights, order, augmentation."""

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
            raise ValueError(f"decay: one that is learnt starts between 0 and 1, both excluded, got {self.decay}")
        if self.neuron in ("relu", "qcfs") and self.timesteps != 1:
            raise ValueError(f"neuron={self.neuron} knows no time: expected timesteps=1, got {self.timesteps}")
        if self.normalisation != "tdbn" and self.neuron != "lif":
            raise ValueError(f"normalisation={self.normalisation} is for neuron=lif, got neuron={self.neuron}")
        if self.levels != Recipe.levels and self.neuron in ("lif", "relu"):
            raise ValueError(f"levels are those of neuron=qcfs; leave them out with neuron={self.neuron}")
        if self.short_epochs and not self.short_timesteps:
            raise ValueError("short_epochs needs short_timesteps: the number of timesteps in those epochs")
        if self.short_epochs and self.short_timesteps > self.timesteps:
            raise ValueError(f"short_timesteps: expected at most {self.timesteps}, got {self.short_timesteps}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum; use nesterov=false")
        if self.alternate_flip and not self.flip:
            raise ValueError("alternate_flip needs flip=true")

    def _check(self, what: str, names: Iterable[str], good: Callable[[Any], bool]) -> None:
        for name in names:
            if not (-inf < getattr(self, name) < inf and good(getattr(self, name))):
                raise ValueError(f"{name}: expected {what}, got {getattr(self, name)}")

    @classmethod
    def of(cls, settings: Mapping[str, Any], source: object) -> "Recipe":
        """The recipe with these settings, which come from the file `source`."""
        try:
            return cls(**settings)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{source}: no recipe of this version of rheobase ({error})") from None

    def slicing(self) -> dict[str, int | str]:
        """Settings of how recordings are sliced, where they are not those of the data set."""
        defaults = {f.name: f.default for f in fields(self)}
        chosen = {name: getattr(self, name) for name in ("slice_by", "window", "sensor")}
        return {name: value for name, value in chosen.items() if value != defaults[name]}

    def timesteps_at(self, epoch: int) -> int:
        """T in that epoch, which counts from 0."""
        return self.short_timesteps if epoch < self.short_epochs else self.timesteps

    def changed(self, settings: Iterable[str]) -> "Recipe":
        """This recipe with `key=value` settings, values given as text."""
        kinds = get_type_hints(Recipe)
        changes = {}
        for setting in settings:
            key, separator, text = setting.partition("=")
            if not separator:
                raise ValueError(f"expected key=value, got '{setting}'")
            if key not in kinds or key == "name":
                valid = ", ".join(f.name for f in fields(Recipe) if f.name != "name")
                raise ValueError(f"a recipe has no setting '{key}'; choose one of {valid}")
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
