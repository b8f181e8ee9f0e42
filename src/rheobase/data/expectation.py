"""What a data set looks like without its files: for predictions before anything is loaded."""

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
    """Decorate a loader with what its data will be; `classes` may be their number, size and timesteps are defaults.

    `images` are those for training, where their number is always the same.
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
