"""A scheduler plays: it stops and starts a run of two processes as it likes, and in the end nothing of it shows."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rheobase.recipes import Recipe, get
from rheobase.train import checkpoint
from rheobase.train.runs import Run
from tests.train.short_runs import assert_identical
from tests.train.test_distributed import free_port, join, run_team

pytestmark = pytest.mark.slow

SETTINGS = ["epochs=12", "batch_size=411", "timesteps=1", "width=0.25", "evaluate_every=2"]


def recipe() -> Recipe:
    return get("demo").changed(SETTINGS)


def fit(rank: int, world: int, port: int, folder: Path) -> None:
    from rheobase import train

    join(rank, world, port)
    train.fit(recipe(), out=folder, device="cpu", keep_best=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    run_team(fit, 2, folder)
    return folder


def torchrun(cwd: Path, *options: str) -> subprocess.Popen[str]:
    """The same command every time."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()), *options]
    command = ["train", "demo", *(f"--set={s}" for s in SETTINGS), "--out", "run", "--continue", "--device", "cpu"]
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "rheobase", *command, "--keep-best", "--save-every", "0.2"],
        cwd=cwd, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for_epoch(number: int, run: Path, job: subprocess.Popen[str]) -> None:
    while job.poll() is None and (not run.exists() or len(Run(run).rows()) < number):
        time.sleep(0.01)
    assert job.poll() is None, job.communicate()


def test_signal_restart_signal_restart_kill(undisturbed: Path, tmp_path: Path) -> None:
    if not Path("/proc/self/task").exists():
        pytest.skip("finding the processes needs /proc")
    run, done = tmp_path / "run", 0
    for number in (signal.SIGTERM, signal.SIGUSR1):
        job = torchrun(tmp_path, "--signals-to-handle", "SIGTERM,SIGUSR1")
        wait_for_epoch(done + 1, run, job)
        began = time.monotonic()
        job.send_signal(number)
        _, messages = job.communicate(timeout=60)
        assert time.monotonic() - began < 20, "torchrun would soon have killed it"
        assert job.returncode != 0
        assert "stopped at step" in messages
        assert "continue with: torchrun --nproc-per-node 2 -m rheobase train --resume run" in messages
        done = len(Run(run).rows())
        assert checkpoint.newest_step(run / "checkpoints") >= 4 * done
    job = torchrun(tmp_path, "--max-restarts", "3")
    wait_for_epoch(done + 1, run, job)
    members = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    os.kill(int(members[-1]), signal.SIGKILL)
    output, messages = job.communicate(timeout=200)
    assert job.returncode == 0, messages
    assert "(SIGKILL)" in messages or "exitcode: -9" in messages, "the kill came too late"
    assert output.count("test accuracy") == 1
    assert_identical(undisturbed, run)
    assert_identical(undisturbed / "best", run / "best")
