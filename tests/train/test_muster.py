"""What is wrong with one process of a team is a sentence of the first, and ends all."""

import os
import sys
from pathlib import Path

import pytest
import torch

from rheobase import cli, recipes, train
from rheobase.data import load
from rheobase.recipes import Recipe
from rheobase.train import checkpoint, distributed, loop, muster
from rheobase.train.runs import Run
from tests.train.test_distributed import free_port, join, processes, run_team

SETTINGS = ["--set=epochs=1", "--set=timesteps=1", "--set=batch_size=719", "--set=width=0.25", "--device=cpu"]


def chosen() -> Recipe:
    return recipes.get("demo").changed([word.removeprefix("--set=") for word in SETTINGS if "set" in word])


def command(rank: int, world: int, port: int, folder: Path, *words: str) -> None:
    """`rheobase train demo`, as on a machine of its own; its messages go to a file."""
    join(rank, world, port)
    muster.SLOW = 0.5
    if "other-code" in words:
        muster.sources = lambda: {"src": "0" * 40}
    train.step.has_bf16 = lambda: "no-bf16" not in words
    os.chdir(folder)
    messages = os.open(f"messages-{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(messages, 2)
    sys.argv = ["rheobase", "train", "demo", *SETTINGS, *(word for word in words if word.startswith("--"))]
    cli.main()


def test_runs_of_several_seeds_in_one_team(tmp_path: Path) -> None:
    run_team(command, 2, tmp_path, "--seeds=0,1", "--out=runs", "--continue")
    for seed in (0, 1):
        assert len(Run(tmp_path / "runs" / f"seed-{seed}").rows()) == 1


def messages(folder: Path, first: list[str], second: list[str]) -> list[str]:
    """Of two processes with different words, both of which must fail."""
    port = free_port()
    members = [
        processes.Process(target=command, args=(rank, 2, port, folder, *words))
        for rank, words in enumerate((first, second))
    ]
    for member in members:
        member.start()
    for member in members:
        member.join()
    assert [member.exitcode for member in members] == [1, 1]
    return [
        "".join(line for line in (folder / f"messages-{rank}").read_text().splitlines() if line.startswith("error: "))
        for rank in (0, 1)
    ]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            ["--out=run"],
            ["--out=run", "--set=lr=0.2"],
            "error: process 1 trains another recipe: lr is 0.2 there and 0.1 in the first process; start all with the "
            "same command",
        ),
        (
            ["--out=run"],
            ["--out=run", "other-code"],
            "error: process 1 has other sources; install the same version of everything on all machines",
        ),
        (
            ["--out=run", "--set=precision=bf16"],
            ["--out=run", "--set=precision=bf16", "no-bf16"],
            "error: process 1 computes in fp32 and the first process in bf16, because their hardware differs; use "
            "machines of one kind, or start a run with --set precision=fp32",
        ),
        (
            ["--out=run"],
            ["--out=local"],
            "error: process 1: local is not the folder that the first process writes to; give one that all machines "
            "share",
        ),
        (
            ["--out=run", "--continue"],
            ["--out=kept", "--continue"],
            "error: process 1: finds an unfinished run in kept, but the first process finds no run; give a folder that "
            "all machines share",
        ),
        (
            ["--out=run"],
            ["--out=run", "--data=nowhere"],
            "error: process 1: nowhere does not exist; check the path given with --data",
        ),
        (
            ["--out=run", "--set=batch_size=1"],
            ["--out=run", "--set=batch_size=1"],
            "error: 2 processes need at least as many images in a batch: the dataset has 1438, a batch 1; "
            "use fewer processes or a larger batch_size",
        ),
    ],
    ids=["recipe", "code", "precision", "folder", "standing", "data", "too few images"],
)
def test_one_sentence_of_the_first_process(tmp_path: Path, first: list[str], second: list[str], message: str) -> None:
    if "--out=kept" in second:
        Run.create(tmp_path / "kept", chosen(), load("digits").info, torch.device("cpu"))
    assert messages(tmp_path, first, second) == [message, ""]
    assert not (tmp_path / "run").exists()


def look_for_checkpoints(rank: int, world: int, port: int, folder: Path, late: bool) -> None:
    """The newest of three is damaged; the second process does not see the one before it, if it is `late`."""
    join(rank, world, port)
    run = Run(folder)
    if late and rank == 1:
        run.checkpoints = folder / "late"
    with distributed.team(torch.device("cpu")) as (team, _):
        try:
            saved = loop._found(run, team)
        except ValueError as error:
            (folder / f"found-{rank}").write_text(str(error))
        else:
            (folder / f"found-{rank}").write_text(str(saved and saved.step))


def test_all_go_on_from_the_same_checkpoint_or_none_does(tmp_path: Path) -> None:
    for place in ("checkpoints", "late"):
        for step in (4, 8, 12) if place == "checkpoints" else (4,):
            checkpoint.save(tmp_path / place, step, {"weights": {"w": torch.ones(1)}}, {})
    (tmp_path / "checkpoints" / "00000012" / "weights.safetensors").write_bytes(b"damaged")
    run_team(look_for_checkpoints, 2, tmp_path, False)
    assert [(tmp_path / f"found-{rank}").read_text() for rank in (0, 1)] == ["8", "8"]
    port = free_port()
    members = [processes.Process(target=look_for_checkpoints, args=(r, 2, port, tmp_path, True)) for r in (0, 1)]
    for member in members:
        member.start()
    for member in members:
        member.join()
    expected = f"process 1: checkpoint {tmp_path / 'late' / '00000008'} cannot be read: No such file or directory"
    assert (tmp_path / "found-0").read_text() == expected
    assert members[1].exitcode == 1
