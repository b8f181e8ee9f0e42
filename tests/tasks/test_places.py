"""Functions of the package take places as text too."""

import os
from pathlib import Path

import pytest
import torch

from rheobase import recipes, train
from rheobase.deploy.formats import native
from rheobase.tasks.compare import compare
from rheobase.tasks.evaluate import evaluate_run
from rheobase.tasks.open import folded
from rheobase.tasks.predict import Classifier
from rheobase.tasks.verify import verify
from rheobase.train.runs import Run

Image = pytest.importorskip("PIL.Image", reason="making images needs pillow")


def test_places_are_paths_or_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for i in range(18):
        os.makedirs(f"photos/{'ab'[i % 2]}", exist_ok=True)
        Image.effect_noise((8, 8), 50 + i).save(f"photos/{'ab'[i % 2]}/{i}.png")
    settings = ["epochs=1", "network=resnet8", "image_size=8", "batch_size=4", "timesteps=1", "precision=fp32"]
    recipe = recipes.get("images_resnet19").changed(settings)
    run = train.fit(recipe, data="photos", out="run", device="cpu")
    assert run.folder == Path("run")
    accuracy = run.rows()[-1]["test_accuracy"]
    assert evaluate_run("run", data="photos", device="cpu").accuracy == accuracy
    assert compare(["run"]).rows[0].runs[0].accuracy_last == accuracy
    assert Classifier("run", "cpu")(torch.zeros(1, 3, 8, 8)).shape == (2,)
    native.write(folded(run)[1], "run/network.safetensors", (3, 8, 8))
    assert verify("run/network.safetensors", Run("run"), data="photos").passed
