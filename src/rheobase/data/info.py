"""The record about a dataset. The dataset has it, and runs, deployed networks and plans keep a copy."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

LARGEST = 2**31  # values of an image


@dataclass(frozen=True, kw_only=True)
class DataInfo:
    """What is known about a dataset. `mean` and `std` have one value per channel, in units of the images (0 to 255)."""

    name: str
    classes: tuple[str, ...]
    channels: int
    size: int
    """Side of the images in pixels."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    timesteps: int = 0
    """Slices per recording; 0 for images."""
    simulated: bool = False
    """Whether the recordings come from a simulated camera."""
    images: int = 0
    """Number of training images; 0 if unknown."""
    test_images: int = 0
    held_out: int = 0
    """n if every n-th image is for testing; 0 if the dataset has separate test images."""
    holdout: int = 0
    """Number of training images that replace the test images; 0: none."""
    fingerprint: str = ""
    """Hash of labels and content; empty if unknown."""
    slicing: Mapping[str, int | bool | str] = field(default_factory=dict)
    """How recordings became frames (see `eventset.Slicing`); empty for images, or if unknown."""

    def __post_init__(self) -> None:
        texts = (self.name, self.fingerprint, *self.classes)
        if not all(isinstance(text, str) for text in texts) or not isinstance(self.simulated, bool):
            raise ValueError("names must be text")
        if not isinstance(self.slicing, dict) or not all(type(v) in (int, bool, str) for v in self.slicing.values()):
            raise ValueError("slicing must hold numbers, texts and flags")
        counts = (self.channels, self.size, self.timesteps, self.images, self.test_images, self.held_out, self.holdout)
        if not all(type(n) is int and 0 <= n < 2**40 for n in counts) or min(self.channels, self.size) < 1:
            raise ValueError("sizes must be whole numbers")
        if self.channels * self.size**2 > LARGEST:
            raise ValueError(f"images of {self.channels} x {self.size} x {self.size} are too large")
        if not self.classes or {len(self.mean), len(self.std)} != {self.channels}:
            raise ValueError("there must be classes, and one mean and deviation per channel")
        numbers = all(type(value) in (int, float) and abs(value) < 1e12 for value in (*self.mean, *self.std))
        if not numbers or min(self.std) <= 0:
            raise ValueError("means and deviations must be finite, and deviations above 0")

    @classmethod
    def of(cls, content: Mapping[str, Any], source: object) -> "DataInfo":
        """Return the record in `content`, read from the file `source`. Earlier versions wrote fewer entries."""
        names = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(cls)}
        missing = [name for name, needed in names.items() if needed and name not in content]
        unknown = sorted(content.keys() - names)
        if missing or unknown:
            what = f"has no {missing[0]}" if missing else f"has an unknown entry {unknown[0]}"
            raise ValueError(
                f"{source}: its record of the data {what}; restore the file, or make it again from the run"
            )
        try:
            lists = {name: tuple(content[name]) for name in ("classes", "mean", "std")}
            return cls(**{**content, **lists})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{source}: its record of the data is damaged ({error}); restore the file") from None

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image, or of one timestep of a recording."""
        return self.channels, self.size, self.size

    def as_dict(self) -> dict[str, Any]:
        """Return the record for a JSON file. Reading it back gives the same dictionary."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def refuse_others(self, found: "DataInfo", owner: object) -> None:
        """Raise a ValueError if the network of `owner`, which has this record, cannot be used with the data `found`."""
        if found.classes != self.classes:
            what = others(found.classes, self.classes)
            raise ValueError(f"{owner} was trained on other classes than these data have: {what}; give its own data")
        if found.shape != self.shape:
            own, other = list(self.shape), list(found.shape)
            raise ValueError(
                f"{owner} was trained on images of [C, H, W] = {own}, these data have {other}; give its own data"
            )
        # records of earlier versions have no fingerprint and do not distinguish recordings from images
        if self.fingerprint and bool(found.timesteps) != bool(self.timesteps):
            kinds = ("recordings", "images") if self.timesteps else ("images", "recordings")
            raise ValueError(f"{owner} was trained on {kinds[0]}, these data are {kinds[1]}; give its own data")

    def same_content(self, found: "DataInfo") -> bool:
        """Return whether `found` is the same data, as far as both records tell."""
        return not (self.fingerprint and found.fingerprint) or self.fingerprint == found.fingerprint


def others(found: Sequence[str], told: Sequence[str]) -> str:
    """Return which classes were found instead of those that were told."""
    here, there = _few({*found} - {*told}), _few({*told} - {*found})
    return f"{here or 'none'} instead of {there or 'none'}" if here or there else "the same ones in another order"


def _few(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:3])
    return f"{shown}, ..." if len(names) > 3 else shown
