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
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rheobase import recipes, train
from rheobase.models import resnet8
from rheobase.nn import ReferenceSoma, ReluSoma, Soma
from rheobase.recipes import Recipe
from rheobase.train import checkpoint, distributed
from rheobase.train.capture import CapturedStep, release
from rheobase.train.collectives import Collectives
from rheobase.train.distributed import Team, TeamBroken
from rheobase.train.loop import SAVE_SECONDS
from rheobase.train.optimizers import make_optimizer
from rheobase.train.runs import Run, channels_last
from rheobase.train.step import Step, make_step
from tests.train.short_runs import StopAt

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
    with pytest.warns(UserWarning, match="it failed in another process"):
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
def test_on_a_gpu_a_group_can_be_given_up_once_its_graph_is_gone(tmp_path: Path) -> None:
    """As after the time-out of a process that hangs, which itself needs two GPUs: nccl wants one for each process."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    _, step = gpu_training(dist.group.WORLD)
    captured = CapturedStep(step)
    gpu_steps(captured, [13] * 6)
    assert captured.graph is not None
    release(captured)
    distributed.give_up()
    dist.destroy_process_group()
    assert not dist.is_initialized()


@needs_gpu
def test_on_a_gpu_the_host_waits_for_numbers_no_longer_than_its_patience() -> None:
    numbers = torch.ones(3, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(2 * 10**9)  # about a second, as if another process did not come to a collective
    numbers += 1
    said = r"a process of this run did not answer for 0\.05 s \(--patience\)"
    with pytest.raises(TeamBroken, match=said), distributed._one_sentence(0.05):
        Team(0, 2, None, 0.05).read(numbers)
    assert Team(0, 2, None, 60.0).read(numbers) == [2.0] * 3


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
