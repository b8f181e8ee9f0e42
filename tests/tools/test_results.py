"""What is kept of runs, and the tables of it: the numbers are those of the files."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import contenders
from rheobase import recipes, train
from rheobase.recipes import Recipe
from rheobase.train.record import write_result
from rheobase.train.runs import Run
from tests.tools.kept import write_kept
from tools import fork, keep
from tools.results import CONTENDERS, kept, spread, tables


def recipe(*settings: str) -> Recipe:
    return recipes.get("demo").changed(["epochs=3", "batch_size=512", "timesteps=2", "evaluate_every=2", *settings])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train.fit(recipe(), out=tmp_path_factory.mktemp("runs") / "run", device="cpu").folder


def test_a_run_is_kept_without_weights_and_shown(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "cifar10" / "small"
    keep.keep(run, out)
    found = keep.against_timesteps(run, None, "cpu")
    write_result(out / "timesteps.json", {"timesteps": found})
    assert not list(out.rglob("*.safetensors"))
    assert Run(out).rows() == Run(run).rows()
    for file in out.glob("*.json*"):
        assert str(Path.home()) not in file.read_text()
        assert '"/' not in file.read_text(), "a place on this machine"

    accuracies, other = tables(tmp_path)
    last = Run(run).rows()[-1]
    ((name, steps, paper, after, best, epochs, seconds, _, device),) = cells(accuracies)
    settings = "`demo`, `epochs=3`, `batch_size=512`"
    assert (name, steps, paper, epochs) == (f"[{settings}](../results/cifar10/small)", "2", "", "3 of 3")
    assert after == f"{100 * last['test_accuracy']:.2f}"
    assert float(best) >= float(after)
    assert seconds == f"{last['elapsed']:.0f}"
    assert device == json.loads((run / "environment.json").read_text())["record"]["device"]
    (row,) = cells(other)
    assert row[:2] == [settings, "2"]
    assert row[3].startswith(f"{after} (")
    assert len(row) == 2 + len(keep.TIMESTEPS)


def timesteps(folder: Path, **accuracies: float) -> None:
    found = {t.removeprefix("t"): {"accuracy": a, "firing_rates": {"soma": a / 4}} for t, a in accuracies.items()}
    (folder / "timesteps.json").write_text(json.dumps({"timesteps": found}))


def cells(table: str) -> list[list[str]]:
    _, _, *rows = (line for line in table.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]


def test_several_seeds_are_one_row(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.5, 0.6)):
        folder = tmp_path / "cifar10" / "t2" / f"seed-{seed}"
        write_kept(folder, replace(recipes.get("cifar10_resnet19_t2"), seed=seed, loss="steps"), 0.9, accuracy)
        timesteps(folder, t1=accuracy - 0.2, t2=accuracy)
    (group,) = kept(tmp_path / "cifar10")
    assert (group.folder, len(group.runs)) == (tmp_path / "cifar10" / "t2", 2)
    assert (group.seconds, group.seconds_to_target) == ("20", "")
    accuracies, other = map(cells, tables(tmp_path))
    words = "`cifar10_resnet19_t2`, `loss=steps`"
    seeds = ["55.00 ± 7.07 (2 seeds)", "90.00 ± 0.00 (2 seeds)"]
    assert accuracies == [
        [f"[{words}](../results/cifar10/t2)", "2", "92.34", *seeds, "2 of 110", "20", "", "a GPU"],
    ]
    assert other == [[f"{words} (2 seeds)", "2", "35.00 ± 7.07 (0.087)", "55.00 ± 7.07 (0.138)"]]


def test_runs_of_one_row_computed_in_the_same_precision(tmp_path: Path) -> None:
    own = recipes.get("cifar10_resnet19_t2")
    for seed, precision in enumerate(("bf16", "fp32")):
        write_kept(tmp_path / "t2" / f"seed-{seed}", own.changed([f"seed={seed}"]), 0.5)
        environment = Run(tmp_path / "t2" / f"seed-{seed}").environment | {"precision": precision}
        (tmp_path / "t2" / f"seed-{seed}" / "environment.json").write_text(json.dumps(environment))
    with pytest.raises(ValueError, match="t2 holds runs that do not differ in their seed alone"):
        kept(tmp_path)


@pytest.mark.parametrize("settings", [["loss=steps", "seed=1"], []], ids=["other settings", "the same seed"])
def test_runs_of_one_row_differ_in_their_seed_alone(tmp_path: Path, settings: list[str]) -> None:
    own = recipes.get("cifar10_resnet19_t2")
    write_kept(tmp_path / "t2", own, 0.5)
    write_kept(tmp_path / "t2" / "seed-1", own.changed(settings), 0.6)
    with pytest.raises(ValueError, match="t2 holds runs that do not differ in their seed alone; remove what"):
        kept(tmp_path)


def test_other_data_have_tables_of_their_own(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.77, 0.78)):
        own = replace(recipes.get("cifar100_resnet19_t4"), seed=seed)
        write_kept(tmp_path / "cifar100" / "t4" / f"seed-{seed}", own, accuracy)
    dogs = recipes.get("images_resnet34")
    write_kept(tmp_path / "imagewoof" / "spiking", dogs, 0.8)
    write_kept(tmp_path / "imagewoof" / "relu", dogs.changed(["neuron=relu", "timesteps=1"]), 0.85)
    hundred, woof = tables(tmp_path)
    assert hundred.startswith("CIFAR-100: test accuracy in bf16, measured in the same way.\n\n| recipe | T |")
    seeds = ["77.50 ± 0.71 (2 seeds)"] * 2
    link = "../results/cifar100/t4"
    assert cells(hundred) == [[f"[`cifar100_resnet19_t4`]({link})", "4", *seeds, "1 of 110", "10", "a GPU"]]
    assert woof.startswith("Imagewoof: ")
    assert [row[:3] for row in cells(woof)] == [
        ["[`images_resnet34`, `neuron=relu`](../results/imagewoof/relu)", "1", "85.00"],
        ["[`images_resnet34`](../results/imagewoof/spiking)", "4", "80.00"],
    ]


def test_one_network_stands_beside_those_for_each_number_of_timesteps(tmp_path: Path) -> None:
    own = recipes.get("cifar10_resnet19_t6")
    for seed in (0, 1):
        write_kept(tmp_path / "cifar10" / "one" / f"seed-{seed}", replace(own, seed=seed), 0.95 + seed / 100)
        measured = {"t1": 0.92, "t2": 0.94 + seed / 100, "t3": 0.95, "t4": 0.95, "t6": 0.95 + seed / 100}
        timesteps(tmp_path / "cifar10" / "one" / f"seed-{seed}", **measured)
    for t, accuracy in {1: 0.9375, 2: 0.94, 6: 0.955}.items():
        write_kept(tmp_path / "cifar10" / f"t{t}", own.changed([f"timesteps={t}", "short_epochs=0"]), accuracy)
    *_, text = tables(tmp_path)
    assert text.startswith("One network for several T: `cifar10_resnet19_t6` (2 seeds), trained with T = 6, beside")
    assert cells(text) == [
        ["1", "92.00 ± 0.00", "[93.75](../results/cifar10/t1)", "1.75"],
        ["2", "94.50 ± 0.71", "[94.00](../results/cifar10/t2)", "-0.50"],
        ["4", "95.00 ± 0.00", "not run", ""],
        ["6", "95.50 ± 0.71", "[95.50](../results/cifar10/t6)", "0.00"],
    ]


def test_the_network_for_the_largest_t_is_tried_at_the_others(tmp_path: Path) -> None:
    own = recipes.get("cifar10_resnet19_t6")
    for t, accuracy in {2: 0.94, 4: 0.95, 6: 0.96}.items():
        write_kept(tmp_path / "cifar10" / f"t{t}", own.changed([f"timesteps={t}", "short_epochs=0"]), accuracy)
        timesteps(tmp_path / "cifar10" / f"t{t}", t1=0.92, t2=0.94 - t / 1000, t4=0.945, t6=0.96)
    *_, text = tables(tmp_path)
    assert text.startswith(
        "One network for several T: `cifar10_resnet19_t6`, `short_epochs=0`, trained with T = 6, beside"
    )
    assert cells(text) == [
        ["1", "92.00", "not run", ""],
        ["2", "93.40", "[94.00](../results/cifar10/t2)", "0.60"],
        ["4", "94.50", "[95.00](../results/cifar10/t4)", "0.50"],
        ["6", "96.00", "[96.00](../results/cifar10/t6)", "0.00"],
    ]


def test_one_run_has_no_deviation() -> None:
    assert spread([93.164]) == "93.16"


def test_results_that_are_not_there_are_not_shown(tmp_path: Path) -> None:
    assert tables(tmp_path) == []
    with pytest.raises(ValueError, match="has no finished epoch to keep"):
        keep.keep(tmp_path, tmp_path / "kept")


def test_a_run_without_a_record_is_not_kept(run: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(run, old, ignore=shutil.ignore_patterns("checkpoints"))
    (old / "environment.json").write_text('{"device": "CPU"}')
    with pytest.raises(ValueError, match=r"environment\.json has no record of how the run was made"):
        keep.keep(old, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_of_a_run_that_is_replaced_nothing_stays(run: Path, tmp_path: Path) -> None:
    earlier, out = tmp_path / "earlier", tmp_path / "kept"
    shutil.copytree(run, earlier)
    (earlier / "start.json").write_text('{"from": "another", "sha256": "0"}')
    keep.keep(earlier, out)
    timesteps(out, t2=0.9)
    keep.keep(run, out)
    assert sorted(file.name for file in out.glob("*.json*")) == sorted(keep.FILES)


def test_a_fork_is_the_other_recipe_as_far_as_they_agree(tmp_path: Path) -> None:
    other = recipe("timesteps=3", "short_timesteps=2", "short_epochs=2")
    train.fit(other, out=tmp_path / "other", device="cpu")

    class Stop(train.Reporter):
        def epoch(self, row: dict[str, float]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.fit(recipe(), out=tmp_path / "run", device="cpu", reporter=Stop(), save_every=0)
    fork.fork(tmp_path / "run", other, tmp_path / "fork")
    rows = train.fit(other, out=tmp_path / "fork", resume=True, device="cpu").rows()
    assert [row["timesteps"] for row in rows] == [2, 2, 3]
    assert [row["loss"] for row in rows] == [row["loss"] for row in Run(tmp_path / "other").rows()]
    environment = json.loads((tmp_path / "fork" / "environment.json").read_text())
    assert environment["forked"]["step"] == rows[0]["step"]
    assert environment["record"]["seed"] == recipe().seed


def test_a_fork_that_was_interrupted_is_not_taken_for_one(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, content: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fork, "write_json", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fork.fork(run, recipe(), tmp_path / "forks" / "fork")
    assert not (tmp_path / "forks" / "fork").exists()
    fork.fork(run, recipe(), tmp_path / "forks" / "fork")
    assert [path.name for path in (tmp_path / "forks").iterdir()] == ["fork"]
    with pytest.raises(ValueError, match="fork exists already; choose another folder"):
        fork.fork(run, recipe(), tmp_path / "forks" / "fork")


def test_a_fork_has_the_settings_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["epochs=1", "batch_size=512", "seed=3"]
    run = train.fit(recipes.get("demo").changed(settings), out=tmp_path / "run", device="cpu").folder
    words = ["fork", str(run), "demo", str(tmp_path / "fork"), *(w for s in settings for w in ("--set", s))]
    monkeypatch.setattr("sys.argv", words)
    fork.main()
    assert Run(tmp_path / "fork").recipe == Run(run).recipe


@pytest.mark.parametrize(
    ("device", "half", "precision", "unit", "time"),
    [
        ("cuda", {}, "bf16", "µs", "1500.0"),  # an older file
        ("cuda", {"half": False}, "fp32", "µs", "1500.0"),
        ("cpu", {"half": True}, "bf16", "ms", "1.5"),
        ("cpu", {"half": False}, "fp32", "ms", "1.5"),
    ],
)
def test_a_table_of_steps_has_their_precision_and_unit(
    tmp_path: Path, device: str, half: dict[str, bool], precision: str, unit: str, time: str
) -> None:
    setting = {"device": device, "network": "resnet19", "timesteps": 4, "batch": 8, **half}
    results = {"floor": {"us_per_image_timestep": 750.0}, "rheobase-speed": {"us_per_image_timestep": 1500.0}}
    write_result(tmp_path / "step-here.json", {"runs": [{"setting": setting, "results": results}]})
    (table,) = tables(tmp_path)
    assert f", {precision}, T = 4, N = 8 (" in table.splitlines()[0]
    assert f"| | {unit} per image and timestep |" in table
    assert [row[::3] for row in cells(table)] == [
        ["convolutions and linear layers alone", "0.50"],
        ["Rheobase", "1.00"],
    ]
    assert cells(table)[1][1] == time


def test_every_contender_has_words() -> None:
    assert CONTENDERS.keys() == {contenders.FLOOR, *contenders.CONTENDERS}


def test_other_neurons_of_ours_are_in_no_table_of_steps(tmp_path: Path) -> None:
    setting = {"device": "cuda", "network": "resnet19", "timesteps": 4, "batch": 8, "half": True}
    results = {name: {"us_per_image_timestep": 9.0} for name in ("rheobase-speed", *contenders.VARIANTS)}
    write_result(tmp_path / "step-here-neurons.json", {"runs": [{"setting": setting, "results": results}]})
    assert tables(tmp_path) == []


def test_tables_say_in_which_precision_it_was_measured(tmp_path: Path) -> None:
    own = recipes.get("cifar10_resnet19_t2")
    write_kept(tmp_path / "cifar10" / "t2", own, 0.5)
    timesteps(tmp_path / "cifar10" / "t2", t2=0.5)
    accuracies, other = tables(tmp_path)
    assert accuracies.startswith("CIFAR-10: test accuracy in bf16, ")
    assert "test accuracy in %, in bf16 (mean" in other  # the file does not say it
    found = {"2": {"accuracy": 0.5, "firing_rates": {"soma": 0.1}, "precision": "fp32"}}
    (tmp_path / "cifar10" / "t2" / "timesteps.json").write_text(json.dumps({"timesteps": found}))
    accuracies, other = tables(tmp_path)
    assert accuracies.startswith("CIFAR-10: test accuracy in bf16, ")
    assert "test accuracy in %, in fp32 (mean" in other


@pytest.mark.parametrize(("said", "precision"), [({}, "bf16"), ({"precision": "fp16"}, "fp16")])
def test_a_shipped_network_and_its_deployment(tmp_path: Path, said: dict[str, str], precision: str) -> None:
    settings = asdict(recipes.get("cifar10_resnet19_t2"))
    accuracies = {"trained_accuracy": 0.94, "accuracy": 0.935}
    shipped = {"name": "small", "recipe": settings, "bytes": 3 * 2**20, **accuracies, **said}
    write_result(tmp_path / "shipped" / "small.json", shipped)
    results = {
        "trained": {"accuracy": 0.9375},
        "int8": {"accuracy": 0.93},
        "int8 file": {"accuracy": 0.92, "bytes": 2**20},
        "int8 below": {"points": 1.0},
    }
    write_result(tmp_path / "deploy-here.json", {"recipe": settings, "results": results})
    content = json.loads((tmp_path / "deploy-here.json").read_text())
    content["record"]["command"] = "python -m benchmarks.deployment networks/small --data DATA"
    (tmp_path / "deploy-here.json").write_text(json.dumps(content))
    networks, deployed = tables(tmp_path)
    assert cells(networks) == [["`small`", "2", "94.00", "93.50", precision, "3.0"]]
    assert deployed.startswith("`small` (T = 2) in float32, as trained and as deployed (`python -m benchmarks.dep")
    assert f"In {precision}, the precision of its training, the same weights score 93.50 %. Before they" in deployed
    assert cells(deployed) == [["trained", "93.75", "", ""], ["int8", "93.00", "92.00", "1.0"]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["lr=0.3"], "differs from demo in more than timesteps"),
        (["timesteps=4"], "has other timesteps than demo in the first 3 epochs"),
    ],
)
def test_a_fork_that_would_not_be_the_other_recipe(
    run: Path, tmp_path: Path, settings: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fork.fork(run, recipe(*settings), tmp_path / "fork")
