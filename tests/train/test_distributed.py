"""Several processes on one machine equal one process on the joined batch, in float64."""

import gc
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rheobase import recipes, train
from rheobase.models import resnet8
from rheobase.models.blocks import GlobalHead
from rheobase.nn import Conv2d, ReferenceSoma, ReluSoma, Soma, TdBN, normalisations
from rheobase.recipes import Recipe
from rheobase.tasks.evaluate import evaluate_run
from rheobase.train import checkpoint, distributed
from rheobase.train.capture import CapturedStep, release
from rheobase.train.collectives import Collective, Collectives
from rheobase.train.distributed import Team
from rheobase.train.loop import SAVE_SECONDS
from rheobase.train.optimizers import make_optimizer
from rheobase.train.runs import Run, channels_last
from rheobase.train.step import Step, make_step
from rheobase.train.trainer import Trainer
from tests.train.test_loop import StopAt

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["rheobase.train"])
CPU = torch.device("cpu")
EXACT = {"rtol": 1e-9, "atol": 1e-12}


def recipe(*settings: str) -> Recipe:
    """Three full batches of 411 and one of 205."""
    return recipes.get("demo").changed(["precision=fp64", "epochs=2", "batch_size=411", "timesteps=2", *settings])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def join(rank: int, world: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def run_team(target, world: int, *arguments: object) -> None:  # type: ignore[no-untyped-def]
    port = free_port()
    members = [processes.Process(target=target, args=(rank, world, port, *arguments)) for rank in range(world)]
    for member in members:
        member.start()
    for member in members:
        member.join()
    assert [member.exitcode for member in members] == [0] * world


def fit(
    rank: int, world: int, port: int, folder: Path, settings: tuple[str, ...], save_every: float = SAVE_SECONDS
) -> None:
    join(rank, world, port)
    train.fit(recipe(*settings), out=folder, device="cpu", save_every=save_every)


def assert_runs_agree(folder: Path, other: Path) -> None:
    one, many = (checkpoint.latest(f / "checkpoints") for f in (folder, other))
    assert one is not None
    assert many is not None
    assert one.step == many.step
    for file, tensors in one.tensors.items():  # weights, running statistics, momentum
        assert tensors.keys() == many.tensors[file].keys()
        for name, tensor in tensors.items():
            torch.testing.assert_close(many.tensors[file][name], tensor, **EXACT, msg=name)
    for row, other_row in zip(Run(folder).rows(), Run(other).rows(), strict=True):
        assert row["firing_rates"] == pytest.approx(other_row["firing_rates"], rel=1e-9)
        for key in ("loss", "train_accuracy", "test_loss", "test_accuracy", "gradient_norm", "lr", "step"):
            assert row[key] == pytest.approx(other_row[key], rel=1e-9), key


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "alone"
    train.fit(recipe(), out=folder, device="cpu")
    return folder


@pytest.mark.parametrize(("world", "memory"), [(2, "packed"), (3, "speed")])
def test_a_run_of_several_processes_equals_one(alone: Path, tmp_path: Path, world: int, memory: str) -> None:
    run_team(fit, world, tmp_path / "team", (f"memory={memory}",))
    assert_runs_agree(alone, tmp_path / "team")


def resume(rank: int, world: int, port: int, folder: Path) -> None:
    join(rank, world, port)
    train.fit(recipe(), out=folder, resume=True, device="cpu")


def test_two_processes_resume_in_the_middle_of_an_epoch_of_one(alone: Path, tmp_path: Path) -> None:
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=tmp_path / "run", device="cpu", reporter=StopAt(2))
    saved = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert saved is not None
    assert 0 < saved.step < 4
    run_team(resume, 2, tmp_path / "run")
    assert_runs_agree(alone, tmp_path / "run")


def two_steps(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    timesteps: int = 3,
    share: float = 1.0,
    lr: float = 0.05,
    **options: Any,
) -> list[Tensor]:
    """Loss sums of two steps on the same batch, then the gradients of the second."""
    r, device = recipe(f"lr={lr}"), images.device
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    step = make_step(network, make_optimizer(network, r, device), scaler, r, timesteps, **options)
    losses = [step(images, labels, share)[0] for _ in range(2)]
    return [torch.stack(losses), *(p.grad for p in network.parameters() if p.grad is not None)]


def batch(n: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(n)
    images = torch.randn(n, 1, 8, 8, dtype=torch.float64, generator=random)
    return images * torch.linspace(0.5, 2, n).view(-1, 1, 1, 1), torch.randint(0, 10, (n,), generator=random)


def member_steps(
    rank: int,
    world: int,
    port: int,
    folder: Path,
    cuts: list[int],
    soma: Callable[..., Soma] = Soma,
    timesteps: int = 3,
) -> None:
    join(rank, world, port)
    torch.manual_seed(5 + rank)  # the weights of the first process count
    images, labels = batch(cuts[-1])
    own = slice(cuts[rank], cuts[rank + 1])
    with distributed.team(CPU) as (team, _):
        network = channels_last(resnet8(soma=soma).double())
        summed = team.join(network, "joined")
        share = len(labels[own]) / len(labels)
        found = two_steps(network, images[own], labels[own], timesteps, share, summed=summed)
        torch.save(found, folder / f"{rank}.pt")


@pytest.mark.parametrize(
    "cuts",
    [[0, 16, 32], [0, 3, 20], [0, 1, 9, 22]],
    ids=["as many images as channels", "uneven", "one image for one of three"],
)
def test_losses_and_gradients_equal_one_process(tmp_path: Path, cuts: list[int]) -> None:
    run_team(member_steps, len(cuts) - 1, tmp_path, cuts)
    torch.manual_seed(5)
    losses, *grads = two_steps(resnet8().double(), *batch(cuts[-1]))
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(len(cuts) - 1)]
    torch.testing.assert_close(sum(member[0] for member in found), losses, **EXACT)
    for _, *others in found:
        for grad, other in zip(grads, others, strict=True):
            torch.testing.assert_close(other, grad, **EXACT)


def test_a_neuron_of_ones_own_joins_its_statistics(tmp_path: Path) -> None:
    run_team(member_steps, 2, tmp_path, [0, 3, 20], ReferenceSoma)
    torch.manual_seed(5)
    losses, *grads = two_steps(resnet8().double(), *batch(20))
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    torch.testing.assert_close(found[0][0] + found[1][0], losses, **EXACT)
    for _, *others in found:
        for grad, other in zip(grads, others, strict=True):
            torch.testing.assert_close(other, grad, **EXACT)


@pytest.mark.parametrize(
    ("soma", "timesteps"),
    [(partial(Soma, surrogate="atan", reset="soft", learn_decay="channel"), 3), (ReluSoma, 1)],
    ids=["learnt decay", "relu"],
)
def test_other_neurons_equal_one_process(tmp_path: Path, soma: Callable[..., Soma], timesteps: int) -> None:
    run_team(member_steps, 2, tmp_path, [0, 3, 20], soma, timesteps)
    torch.manual_seed(5)
    losses, *grads = two_steps(resnet8(soma=soma).double(), *batch(20), timesteps)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    torch.testing.assert_close(found[0][0] + found[1][0], losses, **EXACT)
    for _, *others in found:
        for grad, other in zip(grads, others, strict=True):
            torch.testing.assert_close(other, grad, **EXACT)


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


def wait_for_the_first(rank: int, world: int, port: int, folder: Path) -> None:
    """In a group whose collectives return before the others are there, as those of nccl do."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 (it registers the backend)

    store = dist.TCPStore("127.0.0.1", port, world, is_master=rank == 0)
    dist.init_process_group("fake", store=store, rank=rank, world_size=world)
    team = Team(rank, world, dist.new_group(backend="gloo"))
    if rank == 0:
        time.sleep(0.3)  # a checkpoint, for example
        (folder / "written").touch()
    team.wait()
    assert (folder / "written").exists()
    team.wait()  # the first one keeps the store
    dist.destroy_process_group()


def test_to_wait_for_all_is_to_wait_on_the_host(tmp_path: Path) -> None:
    run_team(wait_for_the_first, 2, tmp_path)


def collectives(network: nn.Module, n: int, group: dist.ProcessGroup) -> list[Collective]:
    """Of one step."""
    r, (images, labels) = recipe(), batch(n)
    summed = distributed.join(network, group)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    step = make_step(network, make_optimizer(network, r, CPU), scaler, r, 3, summed=summed)
    with Collectives() as seen:
        step(images, labels, 0.5)
    return seen.calls


class Currents(nn.Module):
    """Two branches that are normalised before neurons see their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(Conv2d(1, 7, 3) for _ in range(2))
        self.norm, self.soma, self.head = TdBN(7, branches=2), Soma(7, normalize=False), GlobalHead(7, 8, 10, Soma)

    def forward(self, x: Tensor, timesteps: int) -> Tensor:
        x = x.expand(timesteps, *x.shape)
        return self.head(self.soma(self.norm(*(conv(x) for conv in self.convs))))


COUNTED: dict[str, Callable[[], nn.Module]] = {
    "somas": resnet8,
    "neurons of one's own": partial(resnet8, soma=ReferenceSoma),
    "currents": Currents,
}


def count_member(rank: int, world: int, port: int, folder: Path) -> None:
    join(rank, world, port)
    with distributed.team(CPU):
        assert dist.group.WORLD is not None
        found = {name: collectives(make().double(), 5 + rank, dist.group.WORLD) for name, make in COUNTED.items()}
        torch.save({name: [tuple(call) for call in calls] for name, calls in found.items()}, folder / f"{rank}.pt")


def test_a_step_says_as_little_as_possible_alike_in_a_group_of_one(tmp_path: Path) -> None:
    run_team(count_member, 2, tmp_path)
    members = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        for name, make in COUNTED.items():
            network = make().double()
            calls = collectives(network, 5, dist.group.WORLD)
            statistics, (gradients,) = calls[:-1], calls[-1:]
            layers = len(normalisations(network)) - (name == "currents")  # one of them normalises nothing
            assert [call.name for call in statistics] == ["all_gather"] * layers + ["all_reduce"] * layers
            assert max(call.bytes for call in statistics) <= 8 * 5 * 64, "two branches of 64 channels, and a count"
            values = [p.numel() for p in network.parameters()]
            assert gradients.name == "all_reduce"
            assert 8 * sum(values) <= gradients.bytes < 8 * sum(n + 32 for n in values)
            for member in members:
                assert [called for called, _ in member[name]] == [call.name for call in calls]
            if name == "somas":  # in others, the gradients of statistics are as many as there are members
                assert members[0][name] == members[1][name] == calls
    finally:
        dist.destroy_process_group()


def torchrun(*arguments: str, cwd: Path, processes: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--master-port", str(free_port())]
    command += ["--nproc-per-node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, "-m", "rheobase", "train", *arguments],
        cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    """Its steps are those of a group, though nobody else is in it."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    gc.collect()
    dist.destroy_process_group()


def gpu_training(group: dist.ProcessGroup | None, statistics: str = "joined") -> tuple[nn.Module, Step]:
    device, r = torch.device("cuda", 0), recipe("lr=0.05")
    torch.manual_seed(5)
    network = resnet8().double().to(device)
    summed = nullcontext if group is None else distributed.join(network, group, statistics)
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    return network, make_step(network, make_optimizer(network, r, device), scaler, r, 3, summed=summed)


def gpu_steps(step: Step, sizes: list[int]) -> Tensor:
    return torch.stack([step(*(t.to("cuda") for t in batch(size)), 1.0)[0] for size in sizes])


def assert_same(own: tuple[Tensor, nn.Module], other: tuple[Tensor, nn.Module]) -> None:
    torch.testing.assert_close(own[0], other[0], **EXACT)
    for tensor, like in zip(own[1].state_dict().values(), other[1].state_dict().values(), strict=True):
        torch.testing.assert_close(tensor, like, **EXACT)


@needs_gpu
@pytest.mark.parametrize("statistics", ["joined", "local"])
def test_on_a_gpu_the_captured_step_of_a_group_is_the_eager_one_of_a_process(
    group_of_one: dist.ProcessGroup, statistics: str
) -> None:
    sizes = [13] * 6 + [11, 13]  # a smaller batch among them
    alone, eager = gpu_training(None)
    network, step = gpu_training(group_of_one, statistics)
    captured = CapturedStep(step)
    try:
        losses = gpu_steps(captured, sizes)
        assert captured.graph is not None, "it was not captured"
        assert_same((losses, network), (gpu_steps(eager, sizes), alone))
    finally:
        release(captured)


@needs_gpu
def test_on_a_gpu_the_host_never_waits_in_a_step_of_a_group(group_of_one: dist.ProcessGroup) -> None:
    _, step = gpu_training(group_of_one)
    images, labels = (t.to("cuda") for t in batch(13))
    step(images, labels, 1.0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with Collectives() as seen:
            step(images, labels, 0.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(seen.calls) == 2 * 7 + 1


@needs_gpu
def test_on_a_gpu_nobody_replays_where_one_process_could_not_capture(group_of_one: dist.ProcessGroup) -> None:
    alone, eager = gpu_training(None)
    network, step = gpu_training(group_of_one)
    captured = CapturedStep(step, all_agree=lambda own: False)
    with pytest.warns(UserWarning, match="another process could not"):
        losses = gpu_steps(captured, [13] * 6)
    assert captured.graph is None
    assert_same((losses, network), (gpu_steps(eager, [13] * 6), alone))


@needs_gpu
def test_on_a_gpu_a_group_whose_step_asks_the_host_goes_on_eagerly(group_of_one: dist.ProcessGroup) -> None:
    alone, eager = gpu_training(None)
    network, step = gpu_training(group_of_one)
    network.head.register_forward_hook(lambda _, __, logits: logits + 0 * logits.sum().item())
    captured = CapturedStep(step)
    with pytest.warns(UserWarning, match="moves data to the host"):
        losses = gpu_steps(captured, [13] * 6)
    assert_same((losses, network), (gpu_steps(eager, [13] * 6), alone))


@needs_gpu
def test_on_a_gpu_torchrun_trains_and_resumes(tmp_path: Path) -> None:
    settings = [f"--set={s}" for s in ("precision=bf16", "epochs=2", "batch_size=411", "timesteps=2")]
    first = torchrun("demo", *settings, "--out", "run", "--save-every=0", cwd=tmp_path, processes=1)
    _, problems = first.communicate(timeout=100)
    assert first.returncode == 0, problems
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    (newest / "weights.safetensors").write_bytes(b"damaged")
    second = torchrun("--resume", "run", cwd=tmp_path, processes=1)
    output, problems = second.communicate(timeout=100)
    assert second.returncode == 0, problems
    assert output.count("test accuracy") == 1
    assert [row["step"] for row in Run(tmp_path / "run").rows()] == [4, 8]
