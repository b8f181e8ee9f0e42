"""Runs that start from a trained network: which weights they take, what they refuse, what they record."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rheobase import recipes, train
from rheobase.data import Dataset, load
from rheobase.data.dataset import Split
from rheobase.data.feed import generator
from rheobase.deploy import fold
from rheobase.deploy.formats import native
from rheobase.models import resnet8
from rheobase.nn import Conv2d, Soma, as_sequence
from rheobase.recipes import Recipe
from rheobase.tasks.convert import convert_run
from rheobase.tasks.evaluate import evaluate_run
from rheobase.train import checkpoint
from rheobase.train.progress import Reporter
from rheobase.train.record import checksum
from rheobase.train.runs import Run, load_network
from rheobase.train.start import Start, normalising, started_from
from tests.train.short_runs import StopAt, assert_identical


def recipe(*settings: str) -> Recipe:
    """Twelve steps per epoch."""
    return recipes.get("demo").changed(["epochs=2", "batch_size=128", "timesteps=2", *settings])


def few_digits(*, classes: int = 3, brightness: float = 1.0) -> Dataset:
    """The digits of the first classes alone."""
    whole = load("digits")
    parts = []
    for part in (whole.train, whole.test):
        assert isinstance(part, Split)
        chosen = part.labels < classes
        parts.append(Split((part.images[chosen] * brightness).to(torch.uint8), part.labels[chosen]))
    return Dataset.of("few", *parts, whole.info.classes[:classes])


class Notes(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, sentence: str) -> None:
        self.said.append(sentence)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train.fit(recipe("epochs=4"), out=tmp_path_factory.mktemp("runs") / "trained", device="cpu")


def weights(run: Run) -> dict[str, Tensor]:
    return run.trained().weights


def first(run: Run) -> dict[str, Tensor]:
    return checkpoint.load(run.checkpoints / "00000000").weights


def test_all_weights_of_the_same_network(trained: Run, tmp_path: Path) -> None:
    notes = Notes()
    gently = recipe("epochs=1", "lr=0.001")
    run = train.fit(gently, start=trained, out=tmp_path / "run", device="cpu", reporter=notes)
    assert all(torch.equal(first(run)[name], t) for name, t in weights(trained).items())
    assert notes.said == ["starts from trained: 39 of 39 tensors"]
    assert run.rows()[0]["loss"] == pytest.approx(trained.rows()[-1]["loss"], rel=0.1)
    file = trained.trained().path / "weights.safetensors"
    assert run.start == {
        "from": "trained",
        "recipe": "demo",
        "step": 48,
        "sha256": checksum([file]),
        "tensors": 39,
        "new": [],
    }


def test_a_new_head_for_other_classes(trained: Run, tmp_path: Path) -> None:
    notes = Notes()
    options: dict[str, Any] = {"dataset": few_digits(), "device": "cpu", "reporter": notes}
    run = train.fit(recipe("epochs=1"), start=trained.folder, out=tmp_path / "run", **options)
    own, theirs = first(run), weights(trained)
    new = ["head.decode.weight", "head.decode.bias"]
    assert {name for name in own if not torch.equal(own[name], theirs[name])} == {*new}
    assert own["head.decode.weight"].shape == (3, 64)
    assert notes.said == ["starts from trained: 37 of 39 tensors, new head for 3 classes"]
    assert run.start is not None
    assert run.start["new"] == new
    untrained = train.fit(recipe("epochs=1"), out=tmp_path / "untrained", **options)
    assert run.rows()[0]["test_loss"] < untrained.rows()[0]["test_loss"]
    assert torch.equal(own["head.decode.bias"], fresh(untrained)["head.decode.bias"])  # as its seed says


def fresh(run: Run) -> dict[str, Tensor]:
    torch.manual_seed(generator(run.recipe.seed).initial_seed())
    return run.network().state_dict()


def test_inputs_are_normalised_as_those_of_the_start(trained: Run, tmp_path: Path) -> None:
    data = few_digits(brightness=0.5)
    assert data.info.mean != trained.data.mean
    run = train.fit(recipe("epochs=1"), start=trained, dataset=data, out=tmp_path / "run", device="cpu")
    assert (run.data.mean, run.data.std) == (trained.data.mean, trained.data.std)
    assert run.data.fingerprint == data.info.fingerprint


def test_recordings_are_not_normalised_as_images(trained: Run, tmp_path: Path) -> None:
    events = load("digits-dvs", timesteps=2)
    begin = Start.of(trained)
    assert normalising(begin, events) is events
    same = Run.create(tmp_path / "events", recipe(), events.info, torch.device("cpu"))
    checkpoint.save(same.checkpoints, 1, {"weights": {}}, {})
    moved = normalising(Start.of(same), events).info
    assert moved == events.info


def test_from_the_first_tensor_that_does_not_fit_the_head_is_new(trained: Run, tmp_path: Path) -> None:
    """Its hidden layer depends on the size of the images, and what reads it must be learnt anew."""
    small = recipe("network=plain5", "epochs=1")
    old = train.fit(small, out=tmp_path / "old", device="cpu")
    whole = load("digits")
    larger = [Split(part.images.repeat(1, 1, 2, 2), part.labels) for part in (whole.train, whole.test)]
    data = Dataset.of("large", *larger, whole.info.classes)
    run = train.fit(small, start=old, dataset=data, out=tmp_path / "run", device="cpu")
    assert run.start is not None
    assert run.start["new"][0] == "head.hidden.weight"
    assert run.start["new"][-1] == "head.decode.bias"
    assert len(run.start["new"]) == 7
    own, theirs = first(run), weights(old)
    assert torch.equal(own["body.1.soma.running_mean"], theirs["body.1.soma.running_mean"])
    assert torch.equal(own["head.soma.running_mean"], torch.zeros(1, 256))
    assert not torch.equal(theirs["head.soma.running_mean"], torch.zeros(1, 256))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            ["network=plain5"],
            r"network 'plain5' cannot start from .*trained: stem\.weight is \[16, 1, 3, 3\] there and \[32, 1, 3, 3\] "
            r"here, and only the head may differ; start from a run of the same network",
        ),
        (["learn_decay=channel"], "its neurons have learn_decay=none, not channel; add --set learn_decay=none"),
        (["normalisation=neunorm"], "its neurons have normalisation=tdbn, not neunorm; add --set normalisation=tdbn"),
        (
            ["decay=0.5"],
            r"the checkpoint was trained with decay 0\.25 \(here 0\.5\); build the network with",
        ),
    ],
)
def test_another_network_is_refused(trained: Run, tmp_path: Path, settings: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        train.fit(recipe(*settings), start=trained, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


class Deeper(nn.Module):
    """A ResNet-8 with a layer in the middle of which ours knows nothing."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        ours = resnet8(**options)
        self.stem, self.soma, self.body, self.head = ours.stem, ours.soma, ours.body, ours.head
        self.more = nn.Linear(2, 3)

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        return self.head(self.body(self.soma(self.stem(as_sequence(x, timesteps)))))


def test_layers_on_one_side_alone_are_refused(trained: Run, tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu"}
    with pytest.raises(ValueError, match=r"more\.weight is missing there and \[3, 2\] here"):
        train.fit(recipe(), network=Deeper, start=trained, out=tmp_path / "run", **options)
    unused = r"no gradient reaches 2 of \d+ parameters, so they will not be trained: more\.weight, more\.bias; look"
    with pytest.warns(UserWarning, match=unused):
        deeper = train.fit(recipe("epochs=1"), network=Deeper, out=tmp_path / "deeper", **options)
    with pytest.raises(ValueError, match=r"more\.bias is \[3\] there and missing here"):
        train.fit(recipe(), start=deeper, out=tmp_path / "run", **options)


def test_what_is_no_start(trained: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing is not the folder of a run, a file, or a network of the package \("):
        train.fit(recipe(), start="nothing", out=tmp_path / "run")
    native.save(fold(load_network(trained)), tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match="is a deployed network, which cannot be trained; start from its run"):
        train.fit(recipe(), start=tmp_path / "net.safetensors", out=tmp_path / "run")
    empty = shutil.copytree(trained.folder, tmp_path / "empty", ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(ValueError, match="empty has no checkpoint: no epoch was finished"):
        train.fit(recipe(), start=empty, out=tmp_path / "run")
    with pytest.raises(ValueError, match="a resumed run continues unchanged; leave out start and keep_best"):
        train.fit(recipe(), start=trained, resume=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resumed_it_is_the_same_run_and_needs_the_start_no_more(trained: Run, tmp_path: Path) -> None:
    chosen = recipe("average=0.8", "batch_size=512")
    train.fit(chosen, start=trained, out=tmp_path / "whole", device="cpu")
    start = shutil.copytree(trained.folder, tmp_path / "start")
    out = tmp_path / "run"
    with pytest.raises(train.Interrupted):
        train.fit(chosen, start=start, out=out, device="cpu", reporter=StopAt(2))
    shutil.rmtree(start)
    train.fit(chosen, out=out, resume=True, device="cpu")
    assert_identical(out, tmp_path / "whole")
    shutil.rmtree(out / "checkpoints")
    shutil.copytree(tmp_path / "whole" / "checkpoints" / "00000000", out / "checkpoints" / "00000000")
    train.fit(chosen, out=out, resume=True, device="cpu")  # a kill before the first checkpoint of its own
    assert_identical(out, tmp_path / "whole")


def test_a_start_that_fails_at_once_leaves_nothing(trained: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the (test )?loss became (nan|inf) by step \d+; try a smaller lr"):
        train.fit(recipe("lr=1e38"), start=trained, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_float64_starts_from_float32(trained: Run, tmp_path: Path) -> None:
    run = train.fit(
        recipe("precision=fp64", "epochs=1", "batch_size=512"), start=trained, out=tmp_path / "run", device="cpu"
    )
    own = first(run)["stem.weight"]
    assert own.dtype == torch.float64
    assert torch.equal(own.float(), weights(trained)["stem.weight"])
    assert load_network(run).stem.weight.dtype == torch.float64


class Odd(nn.Module):
    """A network without a module called head: its last layer is."""

    def __init__(self, num_classes: int, in_channels: int, image_size: int, **neuron: Any) -> None:
        super().__init__()
        self.conv = Conv2d(in_channels, 5, 3, bias=False)
        self.soma = Soma(5, **neuron)
        self.readout = nn.Linear(5, num_classes)

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        return self.readout(self.soma(self.conv(as_sequence(x, timesteps))).mean((-2, -1)))


def test_a_network_of_ones_own_gets_a_new_head_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"network": Odd, "device": "cpu"}
    old = train.fit(recipe("epochs=1"), out=tmp_path / "old", **options)
    frozen = recipe("epochs=1", "freeze=body")
    run = train.fit(frozen, start=old, dataset=few_digits(), out=tmp_path / "new", **options)
    assert run.start is not None
    assert run.start["new"] == ["readout.weight", "readout.bias"]
    after = weights(run)
    assert torch.equal(after["conv.weight"], weights(old)["conv.weight"])
    assert not torch.equal(after["readout.weight"], first(run)["readout.weight"])
    assert json.loads((run.folder / "start.json").read_text())["tensors"] == 7


def test_weights_from_before_neurons_had_choices_are_taken(trained: Run, tmp_path: Path) -> None:
    """The settings of a soma were five numbers then."""
    shutil.copytree(trained.folder, tmp_path / "old")
    saved = trained.trained()
    old = {name: t[:5] if name.endswith("_extra_state") else t for name, t in saved.tensors["weights"].items()}
    shutil.rmtree(tmp_path / "old/checkpoints")
    checkpoint.save(tmp_path / "old/checkpoints", saved.step, {"weights": old}, {})
    run = train.fit(recipe("epochs=1"), start=tmp_path / "old", out=tmp_path / "new", device="cpu")
    assert run.start is not None
    assert run.start["new"] == []


def test_a_start_is_told_by_its_place_or_its_weights_not_its_name(trained: Run, tmp_path: Path) -> None:
    for name in ("x", "y"):
        shutil.copytree(trained.folder, tmp_path / name / "base")
    other = train.fit(recipe("epochs=1", "seed=5"), out=tmp_path / "z/base", device="cpu")
    run = train.fit(recipe("epochs=1"), start=tmp_path / "x/base", out=tmp_path / "run", device="cpu")
    assert run.place("start") == tmp_path / "x/base"
    assert started_from(run, str(tmp_path / "x/base"))
    assert started_from(run, str(tmp_path / "y/base"))  # the same weights
    assert not started_from(run, str(other.folder))
    assert not started_from(run, None)
    assert not started_from(trained, str(tmp_path / "x/base"))
    shutil.rmtree(tmp_path / "x")
    assert started_from(run, str(tmp_path / "x/base"))  # it is gone, and was of that name


def test_a_run_without_its_first_weights_does_not_begin_anew(trained: Run, tmp_path: Path) -> None:
    run = train.fit(recipe("epochs=1"), start=trained, out=tmp_path / "run", device="cpu")
    shutil.rmtree(run.checkpoints)
    metrics = run.metrics.read_bytes()
    with pytest.raises(ValueError, match="has lost its checkpoints and cannot be resumed"):
        train.fit(out=run.folder, resume=True, device="cpu")
    assert run.metrics.read_bytes() == metrics


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a network that was trained with ReLUs."""
    folder = tmp_path_factory.mktemp("runs")
    relu = train.fit(recipe("epochs=4", "neuron=relu", "timesteps=1"), out=folder / "relu", device="cpu")
    native.save(convert_run(relu, "calibrated", 2, images=100, spread=True), folder / "converted.safetensors")
    return folder / "converted.safetensors"


def test_hybrid_training_starts_where_the_conversion_ended(converted: Path, tmp_path: Path) -> None:
    notes, settings = Notes(), ["decay=1", "reset=soft", "lr=0.1"]
    run = train.fit(recipe(*settings), start=converted, out=tmp_path / "run", device="cpu", reporter=notes)
    assert notes.said == ["starts from converted.safetensors: 39 of 39 tensors"]
    assert run.start is not None
    assert (run.start["from"], run.start["sha256"]) == ("converted.safetensors", checksum([converted]))
    before = evaluate_run(converted, device="cpu").accuracy
    new = train.fit(recipe(*settings), out=tmp_path / "new", device="cpu")
    assert run.rows()[-1]["test_accuracy"] > max(before, new.rows()[-1]["test_accuracy"])
    assert started_from(run, str(converted))
    assert not started_from(run, None)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["reset=soft"], r"its neurons have decay=1\.0, not 0\.25; add --set decay=1\.0"),
        (["decay=1"], "its neurons have reset=soft, not hard; add --set reset=soft"),
        (["decay=1", "reset=soft", "normalisation=none"], "its neurons have normalisation=tdbn, not none; add --set"),
        (["decay=1", "reset=soft", "network=plain5"], "its layers of neurons differ; use the network and the data"),
    ],
)
def test_hybrid_of_another_network(converted: Path, tmp_path: Path, settings: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"^network '.*' cannot start from .*converted\.safetensors: {sentence}"):
        train.fit(recipe(*settings), start=converted, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_relu_run_is_converted_first(converted: Path, tmp_path: Path) -> None:
    relu, options = converted.parent / "relu", {"out": tmp_path / "run", "device": "cpu"}
    with pytest.raises(ValueError, match=r"relu: its neurons do not spike \(neuron=relu\); convert it with `rheobase"):
        train.fit(recipe(), start=relu, **options)
    assert not (tmp_path / "run").exists()
    again = train.fit(recipe("epochs=1", "neuron=relu", "timesteps=1", "lr=0.001"), start=relu, **options)
    assert again.rows()[-1]["test_accuracy"] > 0.9


def test_hybrid_training_of_other_classes(converted: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"start": converted, "dataset": few_digits(), "device": "cpu"}
    with pytest.raises(ValueError, match="the synapses of head_decode differ in shape; use the network and the data"):
        train.fit(recipe("decay=1", "reset=soft"), out=tmp_path / "run", **options)
