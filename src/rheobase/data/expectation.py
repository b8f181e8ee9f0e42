"""What a dataset will look like, for predictions before its files are loaded."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rheobase.data.info import DataInfo

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

    `classes` are names, or a number. `size` and `timesteps` are defaults. `images` is the number of training images,
    if there is an official one.
    """

    def note(loader: AnyLoader) -> AnyLoader:
        EXPECTED[loader] = DataInfo(
            name=loader.__name__,
            classes=tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes),
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
