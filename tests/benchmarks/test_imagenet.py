"""The benchmark of the ImageNet networks runs at a small size, and a mode without enough memory is a row of its own."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rheobase import recipes

pytest.importorskip("PIL.Image", reason="making images needs pillow")
from benchmarks import imagenet
from rheobase.data import load
from rheobase.recipes import Recipe
from rheobase.train import plan

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


def test_results_that_lack_a_mode_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, timed = tmp_path / "imagenet.json", []

    def points(mode: Recipe, *_: object) -> Iterator[dict[str, str]]:
        yield {"images": "on the device"}
        if len(timed) == 1:
            raise KeyboardInterrupt
        yield {"images": "JPEG files"}
        timed.append(mode.memory)

    monkeypatch.setattr(imagenet, "points", points)
    small = ["--networks=resnet34", "--images=12", "--batch=3", "--steps=4", "--size=8", "--device=cpu"]
    monkeypatch.setattr(sys, "argv", ["imagenet", *small, f"--out={out}"])
    with pytest.raises(KeyboardInterrupt):
        imagenet.main()
    modes = len(list(plan.modes(recipes.get("imagenet_resnet34"))))
    assert json.loads(out.read_text())["to_come"] == modes - 1
    timed.append("so that none is interrupted")
    imagenet.main()
    found = json.loads(out.read_text())
    assert "to_come" not in found
    assert len(found["training"]) == 2 * modes
