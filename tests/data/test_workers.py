"""Who decodes a user's own images: threads or processes."""

import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rheobase import data, train
from rheobase.data import decoding, workers
from rheobase.data.feed import Feed
from rheobase.recipes import get
from rheobase.train import checkpoint
from tests.data.images import SHADES, write
from tests.train.short_runs import StopAt

pytest.importorskip("PIL.Image", reason="reading images needs pillow")


@pytest.fixture
def jpegs(tmp_path: Path) -> Path:
    """18 files for training, one of them damaged, and 4 for testing."""
    for name, shade in SHADES.items():
        for part, number in (("train", 9), ("val", 2)):
            for i in range(number):
                write(tmp_path / "set" / part / name / f"{i}.jpg", shade + i, width=40 + i, height=33)
    (tmp_path / "set" / "train" / "dark" / "5.jpg").write_bytes(b"\xff\xd8\xff")
    return tmp_path / "set"


@pytest.fixture
def _processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are started for any number of cores and files."""
    monkeypatch.setattr(workers, "LEAST_CORES", 1)
    monkeypatch.setattr(workers, "LEAST_FILES", 1)


JPEG_RECIPE = get("imagenet_resnet34").changed(
    ["network=resnet8", "image_size=8", "batch_size=5", "timesteps=2", "epochs=2", "precision=fp32"]
)


def test_processes_decode_what_threads_do(jpegs: Path) -> None:
    found = data.load("imagenet", jpegs, size=8)
    batches = []
    for pool in (workers.threads(), workers.processes(3)):
        train, test = (replace(part, workers=pool) for part in (found.train, found.test))
        feed = Feed(replace(found, train=train, test=test), JPEG_RECIPE, torch.device("cpu"), torch.float32)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            epochs = [list(feed.training(0)), list(feed.training(1)), list(feed.training(1, first=2))]
        assert [Path(str(w.message).split(": ")[0]).name for w in told] == ["5.jpg"]
        batches.append([x for epoch in epochs for x, _, _ in epoch] + [x for x, _ in feed.testing()])
    assert len(batches[0]) == 4 + 4 + 2 + 1
    assert all(torch.equal(*pair) for pair in zip(*batches, strict=True))
    assert all(torch.equal(*pair) for pair in zip(batches[1][6:8], batches[1][8:10], strict=True))


def test_processes_are_for_many_cores_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "processes", lambda number: number)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(15))
    assert isinstance(workers.choose(999), workers.Threads)
    assert workers.choose(1000) == 15
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert workers.choose(1000) == 5
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert isinstance(workers.choose(1000), workers.Threads)


def test_a_batch_may_be_larger_than_the_socket_and_may_be_given_up(images: Path) -> None:
    pool = workers.processes(3)
    pool.channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    files = replace(data.load("imagenet", images, size=6).train, workers=pool)
    many = torch.arange(1501) % len(files)
    given_up = files.begin(many)
    assert pool.unsent
    del given_up
    assert torch.equal(files.read(many), files.read(torch.arange(len(files)))[many])
    assert not pool.batches
    assert not pool.unsent


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
@pytest.mark.usefixtures("_processes")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # Python 3.12 and later
@pytest.mark.parametrize("start", [workers.threads, lambda: workers.processes(workers.cores())])
def test_a_fork_has_threads_and_processes_of_its_own(images: Path, start: Callable[[], workers.Workers]) -> None:
    files, everything = data.load("imagenet", images, size=6).train, torch.arange(20) % 16
    ours = start()
    pixels = replace(files, workers=ours).read(everything)
    child = os.fork()
    if not child:  # as a worker of a user's own DataLoader
        signal.alarm(60)
        same = torch.equal(replace(files, workers=start()).read(everything), pixels)
        os._exit(0 if same and start() is not ours else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert start() is ours


@pytest.mark.usefixtures("_processes")
def test_processes_that_are_killed_are_an_error_and_started_again(images: Path) -> None:
    files = data.load("imagenet", images, size=6).train
    everything = torch.arange(len(files))
    pixels = files.read(everything)
    for process in workers.processes(workers.cores()).processes:
        process.kill()
        process.wait()
    with pytest.raises(ChildProcessError, match=r"(\d+) of \1 image-decoding processes ended \(exit code -9\)"):
        files.read(everything)
    assert torch.equal(files.read(everything), pixels)


@pytest.mark.usefixtures("_processes")
def test_processes_that_are_stopped_are_told_to_go_on(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 50)
    files = data.load("imagenet", images, size=6).train
    everything = torch.arange(len(files))
    pixels = files.read(everything)
    for process in workers.processes(workers.cores()).processes:
        process.send_signal(signal.SIGSTOP)
    with pytest.warns(UserWarning, match=r"an image-decoding process \(\d+\) was stopped; it was told to continue"):
        assert torch.equal(files.read(everything), pixels)


@pytest.mark.usefixtures("_processes")
def test_processes_do_not_hear_a_scheduler_that_ends_the_whole_job(images: Path) -> None:
    files = data.load("imagenet", images, size=6).train
    pool = workers.processes(workers.cores()).processes
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        for process in pool:
            process.send_signal(number)  # some of them have not even started
    everything = torch.arange(len(files))
    assert torch.equal(files.read(everything), data.load("imagenet", images, size=6).train.read(everything))
    assert [process.poll() for process in pool] == [None] * len(pool)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {*workers.DEAF_TO}


def test_processes_import_little_and_never_see_an_interrupt() -> None:
    started = f"import runpy, sys; runpy.run_path({decoding.__file__!r})['pillow']()"
    loaded = f"{started}; print({{'torch', 'numpy'}} & {{*sys.modules}})"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True) == "set()\n"
    for process in workers.processes(3).processes:
        assert os.getpgid(process.pid) == process.pid


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [("1 / 0", 1, "ZeroDivisionError"), ("os.kill(os.getpid(), 9)", -signal.SIGKILL, "")],
)
def test_processes_end_with_the_one_that_started_them(images: Path, end: str, code: int, message: str) -> None:
    script = f"""
import os, pathlib, torch
from rheobase.data.files import Files
from rheobase.data.pictures import read
from rheobase.data import workers
from rheobase.data.files import Files
from rheobase.data.pictures import read
paths = [pathlib.Path({str(images / "dark" / "01.png")!r})] * 99
waiting = Files(paths, torch.zeros(99), 64, workers=workers.processes(2)).begin(torch.arange(99))
{end}
"""
    # They hold the other ends of these pipes, too: as long as one lives, this does not return.
    found = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", script], capture_output=True, text=True, timeout=120
    )
    assert found.returncode == code
    assert found.stdout == ""
    assert (found.stderr.splitlines() or [""])[-1].startswith(message)
    assert message or not found.stderr
    assert "ResourceWarning" not in found.stderr


@pytest.mark.filterwarnings("ignore:cannot read the image")
@pytest.mark.parametrize(("step", "processes"), [(1, True), (4, False)])
def test_a_run_on_jpeg_files_continues_within_an_epoch(
    jpegs: Path, tmp_path: Path, step: int, processes: bool, request: pytest.FixtureRequest
) -> None:
    recipe = JPEG_RECIPE.changed(["batch_size=6"])
    train.fit(recipe, data=jpegs, out=tmp_path / "whole", device="cpu")
    with pytest.raises(train.Interrupted, match=r"stopped at step \d of 6"):
        train.fit(recipe, data=jpegs, out=tmp_path / "run", device="cpu", reporter=StopAt(step))
    if processes:  # what begins with threads may continue with processes
        request.getfixturevalue("_processes")
    train.fit(recipe, data=jpegs, out=tmp_path / "run", device="cpu", resume=True)
    whole, resumed = (checkpoint.latest(tmp_path / name / "checkpoints") for name in ("whole", "run"))
    assert whole is not None
    assert resumed is not None
    for group in ("weights", "training"):
        assert whole.tensors[group].keys() == resumed.tensors[group].keys()
        assert all(torch.equal(t, resumed.tensors[group][name]) for name, t in whole.tensors[group].items())
