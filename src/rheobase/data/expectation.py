"""What a dataset will look like, for predictions before its files are loaded."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from rheobase.data.info import DataInfo, others

Loader = Callable[..., Any]
AnyLoader = TypeVar("AnyLoader", bound=Loader)

EXPECTED: dict[Loader, DataInfo] = {}


def expecting(
    *,
    classes: Sequence[str] | int,
    channels: int,
    size: int,
    timesteps: int = 0,
    simulated: bool = False,
    images: int = 0,
) -> Callable[[AnyLoader], AnyLoader]:
    """Decorate a loader with what its data will look like.

    `classes` are names, or a number if the files decide. `size` and `timesteps` are defaults. `images` is the number of
    training images, if there is an official one. `load` refuses data with other names, channels or default size, and
    images instead of recordings.
    """

    def note(loader: AnyLoader) -> AnyLoader:
        EXPECTED[loader] = DataInfo(
            name=loader.__name__,
            classes=_numbers(classes) if isinstance(classes, int) else tuple(classes),
            channels=channels,
            size=size,
            mean=(0.0,) * channels,
            std=(1.0,) * channels,
            timesteps=timesteps,
            simulated=simulated,
            images=images,
        )
        return loader

    return note


def refuse_contradiction(loader: Loader, name: str, found: DataInfo, size: int) -> None:
    """Raise a ValueError if loaded data contradict what their loader expects. `size` is that asked for."""
    if not isinstance(loader, Hashable) or loader not in EXPECTED:
        return
    expected = EXPECTED[loader]
    if expected.classes not in (_numbers(len(expected.classes)), found.classes):
        what = others(found.classes, expected.classes)
        raise ValueError(
            f"dataset '{name}': its data have other classes than its @expecting says: {what}; correct either"
        )
    pairs: dict[str, tuple[object, object]] = {
        "channels": (expected.channels, found.channels),
        "size": (size or expected.size, found.size),
        "recordings": (expected.timesteps > 0, found.timesteps > 0),
    }
    for what, (told, is_so) in pairs.items():
        if told != is_so:
            raise ValueError(
                f"dataset '{name}': its @expecting says {what}={told}, but its data have {what}={is_so}; correct either"
            )


def _numbers(classes: int) -> tuple[str, ...]:
    return tuple(map(str, range(classes)))
