"""The step times of the package are those of results/, and nothing else."""

import json
from pathlib import Path

import pytest

from rheobase import recipes
from rheobase.data import expected
from rheobase.recipes import RECIPES
from rheobase.train.record import write_result
from rheobase.train.steptimes import FILE
from tools import steptimes
from tools.steptimes import DEVICE, DOCUMENT, RESULTS, content, hours, steps, with_hours


def test_the_package_has_what_the_tool_writes() -> None:
    assert json.loads(FILE.read_text()) == content(steps(RESULTS)), "run python -m tools.steptimes"


def test_the_document_has_the_hours_of_every_recipe() -> None:
    text = DOCUMENT.read_text()
    assert with_hours(text) == text, "run python -m tools.steptimes"
    known = [r for r in map(recipes.get, RECIPES) if expected(r.data, size=r.image_size).images]
    assert [row.split("`")[1] for row in hours().splitlines()[2:]] == [recipe.name for recipe in known]


def test_every_step_has_its_source() -> None:
    found = steps(RESULTS)
    assert {step.memory for step in found} == {"speed", "packed", "recompute"}
    for step in found:
        assert (RESULTS / step.source).exists()
    keys = [(*step.subject, step.memory, step.timesteps, step.batch) for step in found]
    assert len(set(keys)) == len(keys)


def result(folder: Path, name: str, us: float, time: str, device: str = DEVICE, half: bool = True) -> None:
    setting = {"timesteps": 4, "batch": 32, "network": "resnet19", "image_size": 32, "device": "cuda", "half": half}
    contenders = ("rheobase-speed", "before-rheobase-speed", "rheobase-atan", "spikingjelly")
    results = {who: {"us_per_image_timestep": us + 10 * i} for i, who in enumerate(contenders)}
    write_result(folder / name, {"runs": [{"setting": setting, "results": results}]})
    found = json.loads((folder / name).read_text())
    found["record"] |= {"device": device, "time": time}
    (folder / name).write_text(json.dumps(found))


def test_the_newest_of_ours_on_that_gpu_counts(tmp_path: Path) -> None:
    result(tmp_path, "step-b.json", 30.0, "2026-01-02T00:00:00+00:00")
    result(tmp_path, "step-a.json", 20.0, "2026-01-03T00:00:00+00:00")
    result(tmp_path, "step-c.json", 10.0, "2026-01-01T00:00:00+00:00")
    result(tmp_path, "step-d.json", 40.0, "2026-01-04T00:00:00+00:00", device="another GPU")
    result(tmp_path, "step-e.json", 90.0, "2026-01-05T00:00:00+00:00", half=False)
    (found,) = steps(tmp_path)
    assert (found.source, found.batch, found.memory) == ("step-a.json", 32, "speed")
    assert found.seconds == pytest.approx(20e-6 * 4 * 32)


def test_a_mode_of_an_imagenet_network_that_failed_has_no_step(tmp_path: Path) -> None:
    about = {"network": "resnet50", "batch": 64}
    rows = [
        about | {"memory": "speed", "result": "out of memory"},
        about | {"memory": "packed", "images": "on the device", "images_per_second": 1600.0},
        about | {"memory": "packed", "images": "JPEG files", "images_per_second": 1500.0},
    ]
    settings = {"precision": "bf16", "size": 224, "timesteps": 6}
    write_result(tmp_path / "imagenet.json", {"settings": settings, "training": rows})
    found = json.loads((tmp_path / "imagenet.json").read_text())
    found["record"] |= {"device": DEVICE}
    (tmp_path / "imagenet.json").write_text(json.dumps(found))
    (step,) = steps(tmp_path)
    assert (step.network, step.memory, step.batch, step.seconds) == ("resnet50", "packed", 64, 0.04)


def test_the_fits_find_what_steps_are_made_of() -> None:
    works = {(n, 8): steptimes.Work(m, k, c) for n, m, k, c in [("a", 100, 7, 5), ("b", 300, 90, 8), ("c", 50, 40, 3)]}

    def made(network: str, batch: int, neuron: float) -> steptimes.Step:
        own = works[network, 8]
        seconds = 0.02 * own.layers + 2 * batch * (3e-3 * own.multiplications + neuron * own.neurons)
        return steptimes.Step(network, 8, 2, batch, "speed", seconds, "made.json")

    batches = [("a", 4), ("a", 9), ("a", 30), ("b", 8), ("c", 70)]
    found = [made(network, batch, 5e-3) for network, batch in batches]
    assert steptimes.seconds_per_layer(found, works) == pytest.approx(0.02)
    assert steptimes.costs(found, works, 0.02) == pytest.approx((3e-3, 5e-3))
    with pytest.raises(ValueError, match="too similar to tell multiplications from neurons"):
        steptimes.costs([made(network, batch, -1e-3) for network, batch in batches], works, 0.02)
