"""The benchmark of the ImageNet networks runs at a small size, and a mode without enough memory is a row of its own."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from rheobase import recipes

pytest.importorskip("PIL.Image", reason="making images needs pillow")
from benchmarks import imagenet
from rheobase.data import load

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
RECIPE = replace(
    recipes.get("imagenet_resnet34"), network="resnet8", timesteps=2, batch_size=3, image_size=8, precision="fp32"
)


def sources(folder: Path) -> dict:
    imagenet.make_files(folder, 13)
    data = imagenet.labelled(load("imagenet", folder, size=8))
    return {"on the device": imagenet.on_the_device(data, 12), "JPEG files": data}


def test_a_mode_is_timed_on_both_kinds_of_data(tmp_path: Path) -> None:
    rows = list(imagenet.points(RECIPE, sources(tmp_path), CPU, steps=4))
    assert [row["images"] for row in rows] == ["on the device", "JPEG files"]
    for row in rows:
        assert row["batch"] == 3
        assert row["hours_per_epoch"] == pytest.approx(1_281_167 / row["images_per_second"] / 3600)


def test_a_mode_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(imagenet, "make_step", lambda *_: fail)
    assert list(imagenet.points(RECIPE, sources(tmp_path), CPU, steps=4)) == [{"batch": 3, "result": "out of memory"}]


def test_every_point_says_how_many_modes_are_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_come: Callable[[ModuleType], list[int]]
) -> None:
    def two(recipe: object, *_: object) -> Iterator[dict[str, str]]:
        yield {"images": "on the device"}
        yield {"images": "JPEG files"}

    said, out = to_come(imagenet), tmp_path / "imagenet.json"
    monkeypatch.setattr(imagenet, "points", two)
    words = ["--networks", "resnet34", "--batch", "1", "--images", "9", "--steps", "1", "--size", "32"]
    monkeypatch.setattr("sys.argv", ["imagenet", *words, "--device", "cpu", "--out", str(out)])
    imagenet.main()
    assert said == [3, 3, 2, 2, 2, 1, 1, 1, 0]
    assert len(json.loads(out.read_text())["training"]) == 6
