"""Runs side by side: which are one row, and what is said of it."""

import json
from pathlib import Path

import pytest
import torch

from rheobase.analysis.fanout import fan_out
from rheobase.deploy import fold
from rheobase.models import build
from rheobase.nn import ReferenceSoma
from rheobase.plugins import neuron
from rheobase.tasks.compare import Spread, compare
from rheobase.train.runs import Run
from tests.runs import RATES, made

RESULTS = Path(__file__).parents[2] / "results"


def test_a_spread_is_that_of_the_sample() -> None:
    assert Spread.of([0.5, 0.75, 1.0]) == Spread(0.75, 0.25, 3)
    assert Spread.of([0.5]) == Spread(0.5, None, 1)
    assert Spread.of_known([None, 0.5, None]) == Spread(0.5, None, 1)
    assert Spread.of_known([None]) is None


def test_seeds_are_one_row(tmp_path: Path) -> None:
    for seed, last in ((10, 0.75), (2, 0.5)):
        made(tmp_path / f"seed-{seed}", f"seed={seed}", accuracies=[0.25, 0.875, last], seconds=seed)
    found = compare([tmp_path])
    (row,) = found.rows
    assert [run.seed for run in row.runs] == [2, 10]
    assert row.name == str(tmp_path)
    assert row.accuracy_last == Spread(0.625, pytest.approx(2**0.5 / 8), 2)
    assert row.accuracy_best == Spread(0.875, 0.0, 2)
    assert row.seconds == Spread(18.0, pytest.approx(12 * 2**0.5), 2)
    assert [point.epoch for point in row.accuracy_by_epoch] == [1, 2, 3]
    assert row.accuracy_by_epoch[2].accuracy == row.accuracy_last
    assert found.differing_settings == {}
    assert row.runs[0].best_epoch == 2
    assert row.epochs == 3


def test_any_other_setting_makes_another_row_and_is_shown(tmp_path: Path) -> None:
    for name, settings in (("a", ["lr=0.2"]), ("b", ["seed=1"]), ("c", ["lr=0.2", "seed=2"])):
        made(tmp_path / name, *settings, accuracies=[0.5])
    found = compare([tmp_path / "b", tmp_path / "a", tmp_path / "c"])
    assert [[run.seed for run in row.runs] for row in found.rows] == [[1], [0, 2]]
    assert found.differing_settings == {"lr": [0.1, 0.2]}
    assert found.rows[1].name == f"{tmp_path / 'a'}, {tmp_path / 'c'}"


def test_a_seed_counts_once_in_a_row(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1), ("c", 0)):
        made(tmp_path / name, f"seed={seed}", accuracies=[0.5])
    assert [[run.seed for run in row.runs] for row in compare([tmp_path]).rows] == [[0, 1], [0]]


def test_runs_that_are_not_as_far_are_a_row_of_their_own(tmp_path: Path) -> None:
    for seed, accuracies in ((0, [0.5, None, 0.75]), (1, [0.5, None]), (2, [])):
        made(tmp_path / str(seed), f"seed={seed}", accuracies=accuracies)
    rows = compare([tmp_path]).rows
    assert [(row.epochs, row.settings["epochs"]) for row in rows] == [(3, 3), (2, 3), (0, 3)]
    assert [row.accuracy_last and row.accuracy_last.mean for row in rows] == [0.75, 0.5, None]
    assert (rows[2].seconds, rows[2].firing_rate, rows[2].joule) == (None, None, None)


@pytest.mark.parametrize("what", ["device", "data_content", "precision"])
def test_runs_on_other_devices_or_data_are_not_averaged(tmp_path: Path, what: str) -> None:
    for seed in (0, 1):
        made(tmp_path / str(seed), f"seed={seed}", accuracies=[0.5])
    name, key = {
        "device": ("environment.json", "device"),
        "data_content": ("data.json", "fingerprint"),
        "precision": ("environment.json", "precision"),
    }[what]
    content = json.loads((tmp_path / "1" / name).read_text())
    (content["record"] if what == "device" else content)[key] = "another"
    (tmp_path / "1" / name).write_text(json.dumps(content))
    found = compare([tmp_path])
    assert len(found.rows) == 2
    assert found.differing_settings[what][1] == "another"
    assert [*found.differing_settings] == [what]


def test_rate_and_energy_come_from_the_metrics(tmp_path: Path) -> None:
    made(tmp_path / "run", "timesteps=3", accuracies=[0.5])
    (row,) = compare([tmp_path]).rows
    reached = fan_out(fold(build("resnet8")).to("meta"), (1, 8, 8))
    rates = {name.replace(".", "_"): rate for name, rate in RATES.items()}
    assert row.joule == Spread(pytest.approx(reached.joule(rates, 3)), None, 1)
    mean = sum(rates[name] * n for name, n in reached.neurons.items()) / sum(reached.neurons.values())
    assert row.firing_rate == Spread(pytest.approx(mean), None, 1)
    assert row.runs[0].not_known is None


@pytest.mark.parametrize("setting", ["neuron=relu", "neuron=qcfs", "normalisation=neunorm"])
def test_a_network_that_sends_no_spikes_has_no_firing_rate(tmp_path: Path, setting: str) -> None:
    made(tmp_path / "run", setting, "timesteps=1", accuracies=[0.5])
    (row,) = compare([tmp_path]).rows
    assert (row.firing_rate, row.joule) == (None, None)
    assert row.runs[0].not_known == "no rate or energy, because the outputs of its layers are not spikes"


@pytest.mark.parametrize("setting", ["learn_decay=layer", "neuron=mild"])
def test_neurons_whose_values_are_asked_for_have_an_energy_too(tmp_path: Path, setting: str) -> None:
    class Mild(ReferenceSoma):
        def spike(self, u: torch.Tensor) -> torch.Tensor:
            return super().spike(u)

    neuron("mild")(Mild)
    made(tmp_path / "plain", accuracies=[0.5])
    made(tmp_path / "other", setting, accuracies=[0.5])
    one, other = compare([tmp_path]).rows
    assert one.joule == other.joule
    assert other.joule is not None


@pytest.mark.parametrize("old", [False, True])
def test_energy_of_recordings_is_not_guessed(tmp_path: Path, old: bool) -> None:
    run = made(tmp_path / "run", "data=digits-dvs", accuracies=[0.5])
    if old:  # records had no fingerprint, and did not tell recordings from images
        kept = {
            k: v
            for k, v in run.read("data.json").items()
            if k in ("name", "classes", "channels", "size", "mean", "std")
        }
        (run.folder / "data.json").write_text(json.dumps(kept))
    found = compare([tmp_path])
    assert found.rows[0].joule is None
    assert found.rows[0].firing_rate is not None
    assert "did not record how many inputs are zero" in str(found.rows[0].runs[0].not_known)
    assert found.simulated


def test_a_neuron_of_ones_own_has_a_rate(tmp_path: Path) -> None:
    class Odd(ReferenceSoma):
        def fire(self, current: torch.Tensor) -> torch.Tensor:
            return (current > 0).to(current.dtype)

    neuron("odd")(Odd)
    made(tmp_path / "run", "neuron=odd", accuracies=[0.5])
    (row,) = compare([tmp_path]).rows
    assert row.joule is None
    assert row.firing_rate is not None
    assert "dynamics or a normalisation of their own" in str(row.runs[0].not_known)


def test_without_its_plugin_a_run_has_its_accuracy(tmp_path: Path) -> None:
    run = made(tmp_path / "run", accuracies=[0.5])
    entry = {"part": "network", "name": "mine", "plugin": "mine.py", "sha256": "12ab"}
    (run.folder / "plugins.json").write_text(json.dumps([entry]))
    (run.folder / "recipe.json").write_text(json.dumps(run.read("recipe.json") | {"network": "mine"}))
    (row,) = compare([tmp_path]).rows
    assert row.accuracy_last == Spread(0.5, None, 1)
    assert (row.firing_rate, row.joule) == (None, None)
    assert "add --plugin mine.py" in str(row.runs[0].not_known)
    assert row.settings["plugins"] == "12ab"


def test_runs_are_found_below_and_counted_once(tmp_path: Path) -> None:
    for name in ("b/seed-0", "a", ".hidden/x"):
        made(tmp_path / name, f"seed={len(name)}", accuracies=[0.5])
    found = compare([tmp_path, tmp_path / "a", tmp_path / "b"])
    assert [run.folder for row in found.rows for run in row.runs] == [str(tmp_path / "a"), str(tmp_path / "b/seed-0")]


def test_what_was_published_can_be_compared() -> None:
    found = compare([RESULTS / "cifar10"])
    by_name = {Path(row.name).name: row for row in found.rows}
    last = Run(RESULTS / "cifar10" / "t2").rows()[-1]
    assert by_name["t2"].accuracy_last == Spread(last["test_accuracy"], None, 1)
    assert found.differing_settings["timesteps"][[*by_name].index("t6")] == 6
    assert by_name["t6"].joule.mean > by_name["t2"].joule.mean > 0


@pytest.mark.parametrize(("name", "message"), [("none", "is not a folder"), ("empty", "no run in .*empty")])
def test_what_is_no_run_is_one_sentence(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    with pytest.raises(ValueError, match=message):
        compare([tmp_path / name])


@pytest.mark.parametrize("content", ['{"record": []}', '{"record": {"device": ["a"]}}', '{"device": 1}', "[" * 200_000])
def test_an_environment_that_is_none_is_named(content: str, tmp_path: Path) -> None:
    run = made(tmp_path / "run", accuracies=[0.5])
    (run.folder / "environment.json").write_text(content)
    with pytest.raises(ValueError, match=r"environment\.json (does not name the device|is not valid JSON)"):
        compare([tmp_path])
