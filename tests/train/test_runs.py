"""The folder of a run: who may write to it, and what it says."""

import json
import multiprocessing
import time
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rheobase import recipes, train
from rheobase.analysis.variants import NeuNorm, NoNorm
from rheobase.data import load
from rheobase.deploy import fold
from rheobase.files import write_json
from rheobase.models import build
from rheobase.nn import Soma, somas
from rheobase.recipes import Recipe
from rheobase.train import checkpoint
from rheobase.train.claim import claimed
from rheobase.train.parts import Parts
from rheobase.train.runs import Run, load_network, network_for
from tests.train.short_runs import StopAt


def recipe() -> Recipe:
    return recipes.get("demo").changed(["epochs=1", "timesteps=1"])


def hold(folder: Path, held: Event) -> None:
    with claimed(folder):
        held.set()
        time.sleep(100)


def test_one_process_at_a_time_trains_a_run(tmp_path: Path) -> None:
    train.fit(recipe(), out=tmp_path, device="cpu")
    processes = multiprocessing.get_context("forkserver")
    held = processes.Event()
    other = processes.Process(target=hold, args=(tmp_path, held))
    other.start()
    assert held.wait(100)
    with pytest.raises(ValueError, match="is being trained by another process; wait until it ends"):
        train.fit(recipe(), out=tmp_path, resume=True, device="cpu")
    other.kill()
    other.join()
    train.fit(recipe(), out=tmp_path, resume=True, device="cpu")


@pytest.mark.parametrize(("name", "simulated"), [("digits_dvs", True), ("demo", False)])
def test_runs_on_simulated_recordings_say_so(name: str, simulated: bool, tmp_path: Path) -> None:
    chosen = recipes.get(name)
    run = Run.create(tmp_path / "run", chosen, load(chosen.data).info, torch.device("cpu"))
    assert run.read("data.json")["simulated"] is simulated


@pytest.mark.parametrize("name", ["digits_dvs", "demo"])
def test_old_records_are_good_enough_for_their_data(name: str, tmp_path: Path) -> None:
    """They had no fingerprint, no numbers of images, and did not tell recordings from images."""
    chosen = recipes.get(name)
    run = Run.create(tmp_path / "run", chosen, load(chosen.data).info, torch.device("cpu"))
    content = run.read("data.json")
    old = {key: content[key] for key in ("name", "classes", "channels", "size", "mean", "std")}
    (run.folder / "data.json").write_text(json.dumps(old))
    found = run.open_data(None)
    assert found.info == load(chosen.data).info
    assert len(found.test) == 359


@pytest.mark.parametrize(
    ("settings", "somas"),
    [
        (["decay=0.5"], {"decay": 0.5, "surrogate": "rectangle", "reset": "hard", "learn_decay": "none"}),
        (["surrogate=atan", "reset=soft"], {"surrogate": "atan", "reset": "soft", "reset_gradient": True}),
        (["reset_gradient=false", "learn_decay=channel"], {"reset_gradient": False, "learn_decay": "channel"}),
    ],
)
def test_the_neuron_of_a_recipe_is_that_of_its_network(settings: list[str], somas: dict[str, Any]) -> None:
    network = network_for(recipe().changed(settings), load("digits").info)
    for module in network.modules():
        if isinstance(module, Soma):
            assert somas.items() <= module.settings.items()


def test_a_network_of_ones_own_need_not_know_every_setting() -> None:
    def mine(num_classes: int, in_channels: int, image_size: int, decay: float, v_th: float, width: float) -> nn.Module:
        return build("resnet8", num_classes=num_classes, in_channels=in_channels, decay=decay)

    parts, info = replace(Parts.of(recipe()), network=mine), load("digits").info
    assert network_for(recipe(), info, parts).soma.surrogate == "rectangle"
    with pytest.raises(ValueError, match=r"^network 'mine' cannot be built from .*, surrogate: .*'surrogate'$"):
        network_for(recipe().changed(["surrogate=atan"]), info, parts)


def test_an_unknown_surrogate_leaves_no_run_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^unknown surrogate 'step'; choose one of rectangle, triangle"):
        train.fit(recipe().changed(["surrogate=step"]), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "settings",
    [
        ["neuron=relu"],
        ["neuron=qcfs", "levels=4"],
        ["timesteps=2", "normalisation=neunorm"],
        ["timesteps=2", "surrogate=triangle", "reset=soft", "learn_decay=channel"],
    ],
    ids=str,
)
def test_a_run_of_another_neuron_resumes_bit_for_bit(settings: list[str], tmp_path: Path) -> None:
    chosen = recipe().changed(["epochs=2", "batch_size=512", *settings])
    whole = train.fit(chosen, out=tmp_path / "whole", device="cpu")
    with pytest.raises(train.Interrupted):
        train.fit(chosen, out=tmp_path / "run", device="cpu", reporter=StopAt(2))
    broken = train.fit(chosen, out=tmp_path / "run", resume=True, device="cpu")
    expected, found = (load_network(run).state_dict() for run in (whole, broken))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    logits = expected.get("soma.decay_logit", torch.arange(2))
    assert len(logits.unique()) > 1  # each has learnt its own
    rates = whole.rows()[-1]["firing_rates"]
    assert all(0 <= rate <= 1 for rate in rates.values())  # of a ReLU, the share above 0


def test_other_normalisations_of_the_same_network() -> None:
    info = load("digits").info
    networks = {name: network_for(recipe().changed([f"normalisation={name}"]), info) for name in ("none", "neunorm")}
    assert {type(somas(networks[name])["soma"]) for name in networks} == {NoNorm, NeuNorm}
    for network in networks.values():
        with pytest.raises(
            ValueError, match=r"normalisation of their own, .*; use Soma \(in a recipe, normalisation=tdbn\)"
        ):
            fold(network)
    with pytest.raises(ValueError, match=r"^NoNorm replaces the normalisation of a soma, but this network has"):
        network_for(recipe().changed(["normalisation=none", "network=ms_resnet19"]), info)


def test_a_record_is_strict_json_and_complete(tmp_path: Path) -> None:
    dataset = load("digits")
    run = Run.create(tmp_path / "run", recipe(), dataset.info, torch.device("cpu"))
    assert run.data == dataset.info
    assert json.loads((run.folder / "data.json").read_text())["images"] == 1438


def test_a_norm_that_overflowed_is_null(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for epoch, norm in ((1, float("inf")), (2, 1.5), (3, 2.5)):
        run.append({"epoch": epoch, "gradient_norm": norm})
    run.keep_rows(2)
    assert run.metrics.read_text() == '{"epoch": 1, "gradient_norm": null}\n{"epoch": 2, "gradient_norm": 1.5}\n'


@pytest.mark.parametrize(
    "line",
    ["[]", "1", '{"step": 1}', '{"epoch": "a"}', '{"epoch": 1.5}', '{"epoch": -1}', '{"epoch": 1, "loss": "x"}',
     '{"epoch": 1, "test_accuracy": null}', '{"epoch": 1, "firing_rates": []}',
     '{"epoch": 1, "firing_rates": {"a": "b"}}', '{"epoch": 1, "elapsed": 1e999}',
     f'{{"epoch": 1, "elapsed": {10**400}}}', "[" * 200_000, '{"epoch": 1, "loss": NaN}'],
)  # fmt: skip
def test_lines_that_are_no_records_of_epochs(tmp_path: Path, line: str) -> None:
    run = Run(tmp_path)
    run.metrics.write_text(f'{{"epoch": 1, "step": 3, "loss": 0.5}}\n{line}\n')
    with pytest.raises(
        ValueError, match=r"metrics\.jsonl has a line that is not (JSON|the record of an epoch); remove it$"
    ):
        run.rows()


def test_a_start_that_says_nothing(tmp_path: Path) -> None:
    for content in ("{}", '{"from": 1, "sha256": []}'):
        (tmp_path / "start.json").write_text(content)
        with pytest.raises(ValueError, match=r"start\.json does not say where the run started"):
            _ = Run(tmp_path).start


def test_a_network_that_is_larger_than_its_weights_is_not_built(tmp_path: Path) -> None:
    recipe = recipes.get("demo").changed(["network=plain5"])
    info = load("digits").info
    run = Run.create(tmp_path / "run", recipe, info, torch.device("cpu"))
    checkpoint.save(run.checkpoints, 1, {"weights": dict(run.network().state_dict())}, {})
    assert load_network(run)
    write_json(run.folder / "data.json", info.as_dict() | {"size": 40_000})
    with pytest.raises(ValueError, match=r"the weights in .*checkpoints do not fit the network in recipe\.json"):
        load_network(Run(run.folder))


@pytest.mark.parametrize(
    "content", ["[" * 200_000, "{}5", '[{"part": "loss", "name": 1, "plugin": [2], "sha256": ""}]', "5"]
)
def test_a_list_of_plugins_that_is_none(tmp_path: Path, content: str) -> None:
    run = Run.create(tmp_path / "run", recipe(), load("digits").info, torch.device("cpu"))
    (run.folder / "plugins.json").write_text(content)
    with pytest.raises(ValueError, match=r"plugins\.json is damaged; restore it"):
        _ = run.parts
