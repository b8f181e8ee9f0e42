"""Files of deployed networks that state things which do not go together."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rheobase import recipes
from rheobase.data import expected
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import native, onnx
from rheobase.models import build
from rheobase.tasks.open import open_as_it_is

Info = dict[str, Any]


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """A file of a network for the digits, with a change of what it states."""
    network = fold(build("resnet8", num_classes=10, in_channels=1, image_size=8).eval())

    def write(change: Callable[[Info, Info], object], suffix: str = ".safetensors") -> Path:
        recipe, data = asdict(recipes.get("demo")), expected("digits").as_dict()
        change(recipe, data)
        network.info.update(recipe=recipe, data=data)
        path = tmp_path / f"net{suffix}"
        (native if suffix == ".safetensors" else onnx).write(network, path, (1, 8, 8))
        return path

    return write


CHANGES: list[tuple[Callable[[Info, Info], object], str]] = [
    (lambda _, data: data.update(classes=["a", "b"]), "it has 10 outputs, but states 2 classes"),
    (lambda recipe, _: recipe.update(timesteps=10**6), "it states 1000000 timesteps; expected at most 4096"),
    (lambda _, data: data.update(timesteps=5000), "it states 5000 timesteps; expected at most 4096"),
    (lambda _, data: data.update(channels=2, mean=[0.0] * 2, std=[1.0] * 2), "cannot read an input|expected images of"),
    (lambda _, data: data.update(size=10**4), "would take|expected images of"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_what_does_not_fit_is_refused(written: Callable[..., Path], change: Any, words: str) -> None:
    path = written(change)
    with pytest.raises(ValueError, match=rf"^{path}: .*({words})"):
        open_as_it_is(path)


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_nor_by_onnx(written: Callable[..., Path], change: Any, words: str) -> None:
    pytest.importorskip("onnxruntime", reason="the extra rheobase[onnx] is not installed")
    path = written(change, ".onnx")
    with pytest.raises(ValueError, match=rf"^{path}: .*({words})"):
        open_as_it_is(path)


def test_what_fits_is_opened(written: Callable[..., Path]) -> None:
    _, stated = open_as_it_is(written(lambda *_: None))
    assert stated.data.shape == (1, 8, 8)
