"""README.md shows what is in results/, like for like, and nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rheobase.recipes import Recipe, get
from tests.tools.kept import write_kept
from tools.readme import in_little_time, like_for_like, with_results
from tools.results import ROOT, kept


def recipe(end: str, timesteps: int, **settings: Any) -> Recipe:
    return replace(get("demo"), name=f"cifar10_resnet19_{end}", timesteps=timesteps, epochs=3, **settings)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_kept(tmp_path / "t2", recipe("t2", 2, lr=0.2, nesterov=True, memory="packed"), 0.5, 0.932, 0.91236)
    write_kept(tmp_path / "t2_paper", recipe("t2_paper", 2, lr=0.1, nesterov=False), 0.4, 0.8, 0.9)
    short = recipe("t4", 4, short_timesteps=2, short_epochs=1)
    write_kept(tmp_path / "t4", short, 0.99, 0.93, 0.94, forked={"recipe": "cifar10_resnet19_t2", "step": 100})
    return tmp_path


def rows(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def test_the_tables_are_those_of_the_results() -> None:
    readme = (ROOT / "README.md").read_text()
    assert with_results(readme) == readme, "run python -m tools.readme"
    assert len(readme.splitlines()) <= 130


def test_the_schedule_of_the_paper_stands_beside_ours(folder: Path) -> None:
    text = like_for_like(kept(folder))
    measured = "test accuracy after the last epoch in fp32, one run each."
    assert text.splitlines()[0] == f"ResNet-19 on CIFAR-10 with T timesteps, one a GPU: {measured}"
    assert rows(text) == [
        ["2", "92.34", "[90.00](results/cifar10/t2_paper)", "[91.24](results/cifar10/t2)", "none of 3"],
        ["4", "92.92", "not run", "[94.00](results/cifar10/t4)", "1 of 3, at T = 2"],
    ]


def test_settings_that_differ_are_named_with_both_values(folder: Path) -> None:
    *_, sentence = like_for_like(kept(folder)).splitlines()
    assert sentence.endswith(": `lr` 0.2 (0.1), `nesterov` true (false).")


def test_several_seeds_are_said_to_be_several(folder: Path) -> None:
    for seed, accuracy in enumerate((0.94, 0.95)):
        write_kept(folder / "t6" / f"seed-{seed}", recipe("t6", 6, seed=seed), 0.5, accuracy)
    text = like_for_like(kept(folder))
    assert "mean and standard deviation where there are several seeds" in text
    assert rows(text)[2][3] == "[94.50 ± 0.71 (2 seeds)](results/cifar10/t6)"


def test_without_the_schedule_of_the_paper_nothing_is_said_to_differ(tmp_path: Path) -> None:
    write_kept(tmp_path / "t2", recipe("t2", 2), 0.9)
    text = like_for_like(kept(tmp_path))
    assert [row[2] for row in rows(text)] == ["not run"]
    assert text.splitlines()[-1].startswith("|")


def test_times_are_those_of_runs_with_a_beginning(tmp_path: Path) -> None:
    write_kept(tmp_path / "t2", replace(get("cifar10_resnet19_t2"), loss="steps"), 0.5, 0.932, 0.91236)
    write_kept(tmp_path / "t2_paper", get("cifar10_resnet19_t2_paper"), 0.4, 0.8, 0.9)
    write_kept(tmp_path / "t4", get("cifar10_resnet19_t4"), 0.9, 0.95, forked={"recipe": "other", "step": 100})
    assert rows(in_little_time({"cifar10": kept(tmp_path)})) == [
        ["`cifar10_resnet19_t2`, `loss=steps`", "2", "91.24", "93.20", "30", "20"],
        ["`cifar10_resnet19_t2_paper`", "2", "90.00", "90.00", "30", ""],
    ]


def test_other_data_follow_as_soon_as_there_are_runs(tmp_path: Path) -> None:
    write_kept(tmp_path / "cifar10" / "t2", recipe("t2", 2), 0.94)
    for seed, accuracy in enumerate((0.77, 0.78)):
        own = replace(get("cifar100_resnet19_t4"), seed=seed)
        write_kept(tmp_path / "cifar100" / "t4" / f"seed-{seed}", own, 0.8, accuracy)
    twin = get("images_resnet34").changed(["neuron=relu", "timesteps=1"])
    write_kept(tmp_path / "imagewoof" / "relu", twin, 0.95)
    _, _, text = with_results((ROOT / "README.md").read_text(), tmp_path).partition("<!-- times")
    seeds = ["77.50 ± 0.71 (2 seeds)", "80.00 ± 0.00 (2 seeds)"]
    assert rows(text.partition("<!-- end of times -->")[0])[1:] == [
        ["[`cifar100_resnet19_t4`](results/cifar100/t4) on CIFAR-100", "4", *seeds, "20", ""],
        ["[`images_resnet34`, `neuron=relu`](results/imagewoof/relu) on Imagewoof", "1", "95.00", "95.00", "10", ""],
    ]


def test_with_every_result_that_is_planned_the_readme_is_not_too_long(tmp_path: Path) -> None:
    for name in ("best", "fast", "t2_paper"):
        write_kept(tmp_path / "cifar10" / name, get(f"cifar10_resnet19_{name}"), 0.94)
    for seed in range(3):
        for t in (1, 2, 4, 6):
            own = replace(get(f"cifar10_resnet19_t{max(2, t)}"), timesteps=t, loss="steps", seed=seed)
            forked = {"recipe": "cifar10_resnet19_t2", "step": 50} if t > 2 else None
            write_kept(tmp_path / "cifar10" / f"t{t}" / f"seed-{seed}", own, 0.94, forked=forked)
        for name in ("t4", "best"):
            own = replace(get(f"cifar100_resnet19_{name}"), seed=seed)
            write_kept(tmp_path / "cifar100" / name / f"seed-{seed}", own, 0.8)
    pictures = get("images_resnet34")
    write_kept(tmp_path / "imagewoof" / "spiking", pictures, 0.9)
    write_kept(tmp_path / "imagewoof" / "relu", replace(pictures, neuron="relu", timesteps=1), 0.9)
    assert len(with_results((ROOT / "README.md").read_text(), tmp_path).splitlines()) <= 130
