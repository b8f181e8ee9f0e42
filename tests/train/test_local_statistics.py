"""What each process keeps from its own images: local statistics, and buffers of a user's parts."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from rheobase.models import resnet8
from rheobase.nn import ReferenceSoma, TdBN
from rheobase.tasks.evaluate import evaluate_run
from rheobase.train import checkpoint, distributed
from rheobase.train.runs import Run
from rheobase.train.trainer import Trainer
from tests.train.test_distributed import CPU, batch, fit, join, run_team, two_steps


def parts(cuts: list[int]) -> list[slice]:
    return [slice(*cut) for cut in pairwise(cuts)]


def local_member(rank: int, world: int, port: int, folder: Path, cuts: list[int]) -> None:
    join(rank, world, port)
    torch.manual_seed(5 + rank)
    images, labels = batch(cuts[-1])
    own = parts(cuts)[rank]
    with distributed.team(CPU) as (team, _):
        network = resnet8().double()
        summed = team.join(network, "local")
        share = len(labels[own]) / len(labels)
        found = two_steps(network, images[own], labels[own], share=share, lr=1e-9, summed=summed)
        torch.save([found, list(team.averaged_buffers(network, "local").values())], folder / f"{rank}.pt")


def test_local_statistics_are_those_of_each_process_until_they_are_evaluated(tmp_path: Path) -> None:
    cuts = [0, 3, 20]
    run_team(local_member, 2, tmp_path, cuts)
    images, labels = batch(cuts[-1])
    grads, buffers = [], []
    for own in parts(cuts):
        torch.manual_seed(5)
        network = resnet8().double()
        share = len(labels[own]) / len(labels)
        _, *found = two_steps(network, images[own], labels[own], share=share, lr=1e-9)
        grads.append(found)
        buffers.append(list(network.buffers()))
    members = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for (_, *found), averaged in members:
        for got, *own in zip(found, *grads, strict=True):  # the step between is too small to be seen
            torch.testing.assert_close(got, sum(own), rtol=1e-5, atol=1e-8)
        for got, one, other in zip(averaged, *buffers, strict=True):
            torch.testing.assert_close(got, (one + other) / 2, rtol=1e-5, atol=1e-8)
    for one, other in zip(members[0][1], members[1][1], strict=True):
        assert torch.equal(one, other)


def test_a_run_with_local_statistics_evaluates_what_it_keeps(tmp_path: Path) -> None:
    settings = ("statistics=local", "epochs=1", "average=0.5", "batch_size=30")  # few: statistics differ
    run_team(fit, 2, tmp_path / "team", settings)
    run = Run(tmp_path / "team")
    (row,) = run.rows()
    kept = evaluate_run(run, device="cpu")
    assert (kept.loss, kept.accuracy) == pytest.approx((row["test_loss"], row["test_accuracy"]), rel=1e-9)
    assert row["test_accuracy"] > 0.3, "nothing fires: statistics do not matter"


def test_checkpoints_inside_an_epoch_change_nothing(tmp_path: Path) -> None:
    settings = ("statistics=local", "epochs=1", "average=0.5", "timesteps=1")
    run_team(fit, 2, tmp_path / "seldom", settings)
    run_team(fit, 2, tmp_path / "often", settings, 1e-9)
    seldom, often = (checkpoint.latest(tmp_path / name / "checkpoints") for name in ("seldom", "often"))
    assert seldom is not None
    assert often is not None
    assert len(list((tmp_path / "often" / "checkpoints").iterdir())) == 2
    for file, tensors in seldom.tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(often.tensors[file][name], tensor), name


def noting_fit(rank: int, world: int, port: int, folder: Path, settings: tuple[str, ...]) -> None:
    """Like `fit`, and every process writes its own network beside the folder whenever all save."""
    save = Trainer.save

    def noting(self: Trainer) -> None:
        torch.save(self.result.state_dict(), folder.with_name(f"{rank}-{self.step}.pt"))
        save(self)

    Trainer.save = noting  # type: ignore[method-assign]
    fit(rank, world, port, folder, settings, 1e-9)


def test_a_checkpoint_inside_an_epoch_has_the_statistics_of_all(tmp_path: Path) -> None:
    run_team(noting_fit, 2, tmp_path / "run", ("statistics=local", "epochs=1", "timesteps=1"))
    inside, _ = sorted((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name))
    one, other = (torch.load(tmp_path / f"{rank}-{int(inside.name)}.pt") for rank in range(2))
    differing = 0
    for name, kept in checkpoint.load(inside).weights.items():
        torch.testing.assert_close(kept, (one[name] + other[name]) / 2, rtol=1e-6, atol=1e-8)
        differing += not torch.equal(one[name], other[name])
    assert differing, "the processes had the same statistics anyway"


class Tired(ReferenceSoma):
    """A neuron of a user's, which keeps something from its own images."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.register_buffer("rate", torch.zeros(channels))


def own_buffers(rank: int, world: int, port: int, folder: Path) -> None:
    join(rank, world, port)
    with distributed.team(CPU) as (team, _):
        for statistics in ("joined", "local"):
            network = nn.Sequential(TdBN(3), nn.BatchNorm1d(3), Tired(3))
            for buffer in network.buffers():
                buffer.fill_(rank)
            found = network.state_dict() | team.averaged_buffers(network, statistics)
            torch.save(found, folder / f"{statistics}{rank}.pt")
        torch.save([team.all_agree(True), team.all_agree(rank == 0), team.all_agree(False)], folder / f"agree{rank}.pt")


def test_buffers_that_a_process_keeps_for_itself_are_averaged_and_all_must_agree(tmp_path: Path) -> None:
    run_team(own_buffers, 2, tmp_path)
    for rank in range(2):
        for statistics, expected in (("joined", rank), ("local", 0.5)):
            found = torch.load(tmp_path / f"{statistics}{rank}.pt")
            assert (found["0.running_mean"] == expected).all()
            assert (found["1.running_mean"] == 0.5).all(), "a part of the user's joins nothing by itself"
            assert found["1.num_batches_tracked"] == rank, "a count is left alone"
            assert (found["2.rate"] == 0.5).all(), "nor does what a neuron of the user's keeps beside"
            assert (found["2.running_mean"] == expected).all()
        assert torch.load(tmp_path / f"agree{rank}.pt") == [True, False, False]
