"""Runs that end before their time, by a signal, a kill or damage, go on as if nothing had happened."""

import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rheobase import train
from rheobase.models import build
from rheobase.train import checkpoint
from rheobase.train.folders import BEGINNING
from rheobase.train.progress import Reporter
from rheobase.train.runs import Run
from tests.train.short_runs import Leave, StopAt, assert_identical, recipe

pytestmark = pytest.mark.usefixtures("one_thread")

KILLS = int(os.environ.get("RHEOBASE_KILLS", "5"))
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["rheobase.train"])
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("step", [4, 5, 6, 11])
def test_ctrl_c_saves_and_the_resumed_run_is_identical(whole: Path, tmp_path: Path, step: int) -> None:
    out = tmp_path / "run"
    with pytest.raises(train.Interrupted, match=r"stopped at step \d+ of 18") as stop:
        train.fit(recipe(), out=out, device="cpu", reporter=StopAt(step))
    assert stop.value.folder == out
    found = checkpoint.latest(out / "checkpoints")
    assert found is not None
    assert step <= found.step <= step + 1
    train.fit(recipe(), out=out, resume=True, device="cpu")
    assert_identical(out, whole)


def with_dropout(num_classes: int, in_channels: int, image_size: int, **neuron: Any) -> Any:
    net = build("resnet8", num_classes=num_classes, in_channels=in_channels, image_size=image_size, **neuron)
    net.body.append(torch.nn.Dropout(0.3))
    return net


def test_random_numbers_of_ones_own_network_go_on(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    train.fit(recipe(), network=with_dropout, out=whole, device="cpu")
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), network=with_dropout, out=out, device="cpu", reporter=StopAt(8))
    train.fit(network=with_dropout, out=out, resume=True, device="cpu")
    assert_identical(out, whole)


@pytest.mark.parametrize("damaged", [torch.zeros(3, dtype=torch.uint8), torch.zeros(3), torch.zeros(5056)])
def test_a_damaged_random_state_is_refused(tmp_path: Path, damaged: torch.Tensor) -> None:
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=tmp_path, device="cpu", reporter=StopAt(2))
    saved = checkpoint.latest(tmp_path / "checkpoints")
    assert saved is not None
    saved.tensors["training"]["random"] = damaged
    checkpoint.save(tmp_path / "checkpoints", saved.step, saved.tensors, saved.state)
    with pytest.raises(ValueError, match="is damaged: its random state does not fit"):
        train.fit(out=tmp_path, resume=True, device="cpu")


def test_other_steps_per_epoch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=tmp_path, device="cpu", reporter=StopAt(2))
    saved = checkpoint.latest(tmp_path / "checkpoints")
    assert saved is not None
    checkpoint.save(tmp_path / "checkpoints", saved.step, saved.tensors, saved.state | {"steps_per_epoch": 4})
    with pytest.raises(ValueError, match="took 4 steps per epoch, here it would take 6; resume it with the data"):
        train.fit(recipe(), out=tmp_path, resume=True, device="cpu")


def start(folder: Path, resume: bool, *settings: str) -> None:
    torch.set_num_threads(1)
    train.fit(recipe(*settings), out=folder, resume=resume, device="cpu", save_every=0.02, keep_best=not resume)


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    settings = ("average=0.8", "epochs=4", "timesteps=1")
    began = time.monotonic()
    train.fit(recipe(*settings), out=tmp_path / "whole", device="cpu", keep_best=True)
    lasted = time.monotonic() - began
    rng = random.Random(KILLS)
    kills = attempt = 0
    while kills < KILLS:
        attempt += 1
        out = tmp_path / f"killed-{attempt}"
        while not (out / "recipe.json").exists():  # a kill before that leaves nothing to resume
            shutil.rmtree(out, ignore_errors=True)
            kills += killed(out, False, settings, rng.uniform(0, 1.2) * lasted)
        while kills < KILLS and killed(out, True, settings, rng.uniform(0, 1.2) * lasted):
            kills += 1
        train.fit(recipe(*settings), out=out, resume=True, device="cpu")
        assert_identical(tmp_path / "whole", out)
        assert_identical(tmp_path / "whole" / "best", out / "best")
        shutil.rmtree(out)


def killed(folder: Path, resume: bool, settings: tuple[str, ...], after: float) -> bool:
    """Whether a run in a process of its own was killed before its end."""
    child = processes.Process(target=start, args=(folder, resume, *settings))
    child.start()
    child.join(after)
    child.kill()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


def test_damage_costs_one_epoch_and_nothing_else(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=out, device="cpu", reporter=StopAt(15), save_every=0)
    newest = max((out / "checkpoints").iterdir())
    (newest / "training.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"):
        train.fit(recipe(), out=out, resume=True, device="cpu")
    assert_identical(out, whole)


def test_a_checkpoint_in_parts_is_resumed_too(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=out, device="cpu", reporter=StopAt(8), part_bytes=100_000)
    assert len(list((out / "checkpoints").glob("*/weights.safetensors.part*"))) == 4
    train.fit(recipe(), out=out, resume=True, device="cpu")
    assert_identical(out, whole)


def test_checkpoints_are_rare_and_metrics_after_the_last_one_are_made_anew(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=out, device="cpu", reporter=StopAt(3))
    with pytest.raises(KeyboardInterrupt):
        train.fit(recipe(), out=out, resume=True, device="cpu", reporter=Leave(12))
    assert [row["epoch"] for row in Run(out).rows()] == [1, 2]
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["00000004"]
    before = Run(out).rows()[0]["elapsed"]
    train.fit(recipe(), out=out, resume=True, device="cpu")
    assert_identical(out, whole)
    assert Run(out).rows()[0]["elapsed"] != before


def test_checkpoints_by_time_inside_an_epoch_are_resumed_too(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for again in (False, True):
        with pytest.raises(KeyboardInterrupt):
            train.fit(recipe(), out=out, resume=again, device="cpu", reporter=Leave(5), save_every=1e-9)
    steps = sorted(int(path.name) for path in (out / "checkpoints").iterdir())
    assert steps in ([8, 9], [9, 10])  # a kill can come while the last one is written
    train.fit(recipe(), out=out, resume=True, device="cpu")
    assert_identical(out, whole)


def test_a_resumed_run_keeps_its_number_of_threads(whole: Path, tmp_path: Path) -> None:
    """The demo has one, `train --resume` would take all."""
    said: list[str] = []

    class Notes(Reporter):
        def note(self, sentence: str) -> None:
            said.append(sentence)

        def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
            said.append(f"{torch.get_num_threads()}")

    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=tmp_path, device="cpu", reporter=StopAt(7))
    torch.set_num_threads(2)
    try:
        train.fit(recipe(), out=tmp_path, resume=True, device="cpu", reporter=Notes())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert said == ["continues with the number of threads that it started with: 1 per process", "1"]
    assert_identical(tmp_path, whole)


@pytest.mark.parametrize("record", ["[]", '{"threads": "two"}', '{"threads": 0}', '{"threads": 1e9}'])
def test_a_damaged_number_of_threads_is_one_sentence(record: str, tmp_path: Path) -> None:
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=tmp_path, device="cpu", reporter=StopAt(2))
    (tmp_path / "environment.json").write_text(f'{{"record": {record}}}')
    with pytest.raises(ValueError, match=r"environment\.json does not say with how many threads the run started"):
        train.fit(recipe(), out=tmp_path, resume=True, device="cpu")


def test_a_kill_between_the_first_metrics_and_the_first_checkpoint(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out, ignore=shutil.ignore_patterns("checkpoints"))
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text(lines[0] + lines[1][:20])
    (out / BEGINNING).touch()
    train.fit(recipe(), out=out, resume=True, device="cpu")
    assert_identical(out, whole)


def test_resume_wants_the_same_recipe(whole: Path) -> None:
    with pytest.raises(ValueError, match="holds a run of another recipe"):
        train.fit(recipe("lr=0.2"), out=whole, resume=True)
    with pytest.raises(ValueError, match="resume needs the folder of the run"):
        train.fit(recipe(), resume=True)


@needs_gpu
@pytest.mark.parametrize("precision", ["fp64", "fp16"])
def test_on_a_gpu_a_stopped_run_goes_on(tmp_path: Path, precision: str) -> None:
    settings = recipe(f"precision={precision}")
    whole = train.fit(settings, out=tmp_path / "whole", device="cuda").rows()
    with pytest.raises(train.Interrupted):
        train.fit(settings, out=tmp_path / "run", device="cuda", reporter=StopAt(10))
    rows = train.fit(settings, out=tmp_path / "run", resume=True, device="cuda").rows()
    assert [row["step"] for row in rows] == [6, 12, 18]
    tolerance = {"fp64": 1e-9, "fp16": 1e-2}[precision]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in whole], rel=tolerance)
