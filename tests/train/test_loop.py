"""Whole runs on the embedded digits: learning, stopping, resuming, failing."""

import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from rheobase import recipes, train
from rheobase.recipes import Recipe
from rheobase.tasks.evaluate import evaluate_run
from rheobase.train import checkpoint, step, trainer
from rheobase.train.capture import CapturedStep, Step, capture
from rheobase.train.progress import Reporter, process_seconds
from rheobase.train.runs import BEGINNING, Run, load_network
from rheobase.train.writing import Writer

GOLDEN = Path(__file__).parents[1] / "golden" / "demo_losses.txt"
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["rheobase.train"])


def recipe(*settings: str) -> Recipe:
    """Six steps per epoch."""
    return recipes.get("demo").changed(["epochs=3", "batch_size=256", "timesteps=2", *settings])


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """The network is so small that a second thread only waits; sums also depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def final(folder: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.latest(folder / "checkpoints")
    assert found is not None
    return {f"{file}.{name}": t for file, tensors in found.tensors.items() for name, t in tensors.items()}


def assert_identical(folder: Path, other: Path) -> None:
    first, second = final(folder), final(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    timings = ("seconds", "images_per_second", "elapsed")
    rows = [[{k: v for k, v in row.items() if k not in timings} for row in Run(f).rows()] for f in (folder, other)]
    assert rows[0] == rows[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train.fit(recipe(), out=folder, device="cpu")
    return folder


def test_a_run_folder_tells_everything(whole: Path) -> None:
    run = Run(whole)
    assert run.recipe == recipe()
    record = run.read("environment.json")["record"]
    assert record["packages"]["torch"] == torch.__version__
    assert record["seed"] == recipe().seed
    rows = run.rows()
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 6), (2, 12), (3, 18)]
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[0]["lr"] > rows[-1]["lr"] > 0
    assert rows[-1]["gradient_norm"] > 0
    assert rows[0]["elapsed"] < rows[1]["elapsed"] < rows[2]["elapsed"]
    assert sum(row["seconds"] for row in rows) < rows[-1]["elapsed"]


def test_the_same_seed_gives_the_same_run_and_another_one_another(whole: Path, tmp_path: Path) -> None:
    train.fit(recipe(), out=tmp_path / "again", device="cpu")
    assert_identical(whole, tmp_path / "again")
    train.fit(recipe("seed=1", "epochs=1"), out=tmp_path / "other", device="cpu")
    assert not torch.equal(final(whole)["weights.stem.weight"], final(tmp_path / "other")["weights.stem.weight"])


def test_eval_repeats_the_last_row(whole: Path) -> None:
    found, last = evaluate_run(whole, device="cpu"), Run(whole).rows()[-1]
    assert (found.accuracy, found.loss) == (last["test_accuracy"], last["test_loss"])
    assert found.firing_rates == last["firing_rates"]
    assert evaluate_run(whole, timesteps=3, device="cpu").firing_rates != found.firing_rates


def test_load_network_is_ready_for_inference(whole: Path) -> None:
    network = load_network(Run(whole))
    assert not network.training
    assert torch.equal(network.stem.weight, final(whole)["weights.stem.weight"])


class StopAt(Reporter):
    """Sends Ctrl-C to this process after a step."""

    def __init__(self, step: int) -> None:
        self.at, self.done = step, 0

    def due(self) -> bool:
        self.done += 1
        if self.done == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        return False


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


def test_a_signal_while_the_last_checkpoint_is_written_leaves_no_graph_and_no_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    class Told(Reporter):
        def stop(self) -> None:
            ended.append("reporter")

    def broken_off(writer: Writer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "release", lambda step: ended.append("graph"))
    monkeypatch.setattr(Writer, "close", broken_off)
    with pytest.raises(KeyboardInterrupt):
        train.fit(recipe("epochs=1"), out=tmp_path, device="cpu", reporter=Told())
    assert ended == ["graph", "reporter"]


def test_other_steps_per_epoch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=tmp_path, device="cpu", reporter=StopAt(2))
    saved = checkpoint.latest(tmp_path / "checkpoints")
    assert saved is not None
    checkpoint.save(tmp_path / "checkpoints", saved.step, saved.tensors, saved.state | {"steps_per_epoch": 4})
    with pytest.raises(ValueError, match="took 4 steps per epoch, here it would take 6; resume it with the data"):
        train.fit(recipe(), out=tmp_path, resume=True, device="cpu")


def test_a_run_with_a_short_beginning_is_evaluated_at_any_timesteps(tmp_path: Path) -> None:
    train.fit(recipe("epochs=1", "timesteps=3", "short_timesteps=2", "short_epochs=1"), out=tmp_path, device="cpu")
    assert evaluate_run(tmp_path, timesteps=1, device="cpu").accuracy > 0


def test_elapsed_counts_every_second_once(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=tmp_path, device="cpu", reporter=StopAt(8))
    train.fit(recipe(), out=tmp_path, resume=True, device="cpu")
    rows = Run(tmp_path).rows()
    spent = sum(row["seconds"] for row in rows)
    assert spent < rows[-1]["elapsed"] < process_seconds() - Run(whole).rows()[-1]["seconds"]
    assert [row["elapsed"] for row in rows] == sorted(row["elapsed"] for row in rows)


def test_elapsed_begins_when_it_is_told(tmp_path: Path) -> None:
    before = process_seconds()
    rows = train.fit(recipe("epochs=1"), out=tmp_path / "run", device="cpu", began=0.0).rows()
    assert rows[-1]["elapsed"] > before


def test_ctrl_c_is_ours_only_while_training(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    train.fit(recipe("epochs=1"), out=tmp_path / "main", device="cpu")
    assert signal.getsignal(signal.SIGINT) is before
    thread = threading.Thread(target=train.fit, args=[recipe("epochs=1")], kwargs={"out": tmp_path / "thread"})
    thread.start()
    thread.join()
    assert len(Run(tmp_path / "thread").rows()) == 1


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


KILLS = int(os.environ.get("RHEOBASE_KILLS", "5"))


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


class Leave(Reporter):
    """Ends the training after a step, as a kill: nothing is saved."""

    def __init__(self, step: int) -> None:
        self.left = step

    def due(self) -> bool:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return False


def test_checkpoints_by_time_inside_an_epoch_are_resumed_too(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for again in (False, True):
        with pytest.raises(KeyboardInterrupt):
            train.fit(recipe(), out=out, resume=again, device="cpu", reporter=Leave(5), save_every=1e-9)
    steps = sorted(int(path.name) for path in (out / "checkpoints").iterdir())
    assert steps in ([8, 9], [9, 10])  # a kill can come while the last one is written
    train.fit(recipe(), out=out, resume=True, device="cpu")
    assert_identical(out, whole)


@pytest.mark.parametrize("which", ["average", "network"])
def test_neither_the_average_nor_the_weights_behind_it_may_be_lost(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(average: nn.Module, network: nn.Module, decay: float) -> None:
        lost = {"average": average, "network": network}[which]
        next(lost.parameters()).data.fill_(torch.nan)

    monkeypatch.setattr(step, "update_average", spoil)
    with pytest.raises(ValueError, match=r"^weights are no longer finite after step \d; try a smaller lr"):
        train.fit(recipe("average=0.5"), out=tmp_path / "run", device="cpu", save_every=1e-9)
    assert not (tmp_path / "run").exists()


def spoiling(whole: Path, out: Path) -> Path:
    """A finished run that has one more epoch to go, whose first step spoils the weights. They stay finite for now."""
    shutil.copytree(whole, out)
    settings = json.loads((out / "recipe.json").read_text())
    (out / "recipe.json").write_text(json.dumps(settings | {"lr": 1e38, "epochs": settings["epochs"] + 1}))
    return out


def test_a_checkpoint_of_spoiled_weights_is_set_aside_and_the_one_before_named(whole: Path, tmp_path: Path) -> None:
    out = spoiling(whole, tmp_path / "run")
    good = re.escape(str(out / "checkpoints" / "00000018"))
    with pytest.raises(
        ValueError, match=rf"became inf by step \d+; the last good checkpoint is {good}; try a smaller lr"
    ):
        train.fit(out=out, resume=True, device="cpu", save_every=1e-9)
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["00000018", "00000019.damaged"]
    spoiled = safetensors.torch.load_file(out / "checkpoints" / "00000019.damaged" / "weights.safetensors")
    assert all(t.isfinite().all() for t in spoiled.values()), "finite: what is wrong with them is seen a step later"
    assert all(t.isfinite().all() for t in final(out).values())


def test_spoiled_weights_are_no_good_checkpoint_though_losses_and_gradients_stay_finite(tmp_path: Path) -> None:
    """Only the running variances of the step after it overflow."""
    out = tmp_path / "run"
    settings = ("lr=1e20", "batch_size=1438", "epochs=8", "evaluate_every=4")
    with pytest.raises(ValueError, match=r"^weights are no longer finite after step 2; try a smaller lr"):
        train.fit(recipe(*settings), out=out, device="cpu", save_every=0)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["00000001.damaged"]
    assert Run(out).rows()[-1]["gradient_norm"] < 10
    with pytest.raises(ValueError, match="has no checkpoint any more to go on from"):
        train.fit(out=out, resume=True, device="cpu")


@pytest.mark.parametrize("save_every", [30.0, 1e-9], ids=["at the end of the epoch", "before a checkpoint"])
def test_gradients_that_are_not_finite_end_the_run(tmp_path: Path, save_every: float) -> None:
    def steep(logits: torch.Tensor, labels: torch.Tensor, recipe: Recipe) -> torch.Tensor:
        """The same loss, with gradients whose norm overflows."""
        mean = nn.functional.cross_entropy(logits.mean(0), labels)
        return mean + 1e30 * (mean - mean.detach())

    with pytest.raises(
        ValueError, match=r"^the norm of the gradients became inf by step \d; try a smaller lr"
    ) as caught:
        train.fit(recipe("lr=1e-35"), loss=steep, out=tmp_path / "run", device="cpu", save_every=save_every)
    assert ("by step 6" in str(caught.value)) == (save_every > 1)
    assert not (tmp_path / "run").exists()


def test_spoiled_weights_are_not_written_where_evaluation_is_rare(tmp_path: Path) -> None:
    """An epoch of one step: its update spoils weights that no loss has seen yet."""
    out = tmp_path / "run"
    settings = ("lr=1e45", "batch_size=1438", "epochs=8", "evaluate_every=4")
    with pytest.raises(ValueError, match=r"weights are no longer finite after step 1; try a smaller lr"):
        train.fit(recipe(*settings), out=out, device="cpu", save_every=0)
    assert not list(out.glob("checkpoints/*"))


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
    assert said == ["goes on with the threads that it began with: 1 per process", "1"]
    assert_identical(tmp_path, whole)


def test_a_kill_between_the_first_metrics_and_the_first_checkpoint(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out, ignore=shutil.ignore_patterns("checkpoints"))
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text(lines[0] + lines[1][:20])
    (out / BEGINNING).touch()
    train.fit(recipe(), out=out, resume=True, device="cpu")
    assert_identical(out, whole)


@pytest.mark.parametrize("batch_size", [256, 1438], ids=["in the middle of an epoch", "by its only step"])
def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path, batch_size: int) -> None:
    out = tmp_path / "run"
    with pytest.raises(ValueError, match=r"the (test )?loss became (nan|inf) by step \d+; try a smaller lr") as caught:
        train.fit(recipe("lr=1e38", f"batch_size={batch_size}"), out=out, device="cpu")
    assert "checkpoint" not in str(caught.value)
    assert not out.exists()  # it failed before anything was worth keeping


def test_a_loss_that_is_not_finite_names_the_last_good_checkpoint(whole: Path, tmp_path: Path) -> None:
    """The step after it was sound, so it is good, though nothing was saved since."""
    out = tmp_path / "run"
    with pytest.raises(train.Interrupted):
        train.fit(recipe("epochs=4"), out=out, device="cpu", reporter=StopAt(18))
    settings = json.loads((out / "recipe.json").read_text())
    (out / "recipe.json").write_text(json.dumps(settings | {"lr": 1e38}))
    good = re.escape(str(out / "checkpoints" / "00000018"))
    with pytest.raises(ValueError, match=rf"by step 24; the last good checkpoint is {good}; try a smaller lr"):
        train.fit(out=out, resume=True, device="cpu")
    assert all(t.isfinite().all() for t in final(out).values())


def test_resume_wants_the_same_recipe(whole: Path) -> None:
    with pytest.raises(ValueError, match="holds a run of another recipe"):
        train.fit(recipe("lr=0.2"), out=whole, resume=True)
    with pytest.raises(ValueError, match="resume needs the folder of the run"):
        train.fit(recipe(), resume=True)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not the folder of a run: it has no recipe\.json"):
        evaluate_run(tmp_path)


def test_an_empty_run_has_nothing_to_evaluate(tmp_path: Path, whole: Path) -> None:
    for name in ("recipe.json", "data.json"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    with pytest.raises(ValueError, match="has no checkpoint: no epoch was finished"):
        evaluate_run(tmp_path)


def test_a_network_that_cannot_be_built_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="image_size 8 is too small"):
        train.fit(recipe("network=resnet34"), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


class NoSpace(Reporter):
    """From the start of the training on, this process cannot write a byte more to any file."""

    def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def stop(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_full_disk_while_writing_metrics(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot write to .*metrics\.jsonl: File too large$"):  # no checkpoint to name
        train.fit(recipe(), out=tmp_path / "run", device="cpu", reporter=NoSpace())
    with pytest.raises(train.Interrupted):
        train.fit(recipe(), out=tmp_path / "again", device="cpu", reporter=StopAt(3))
    with pytest.raises(OSError, match=r"metrics\.jsonl: File too large; earlier checkpoints are intact"):
        train.fit(recipe(), out=tmp_path / "again", resume=True, device="cpu", reporter=NoSpace())


def test_a_full_disk_while_writing_a_checkpoint_beside_the_training(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"could not write checkpoint .*0000000\d: File too large$"):
        train.fit(recipe(), out=tmp_path / "run", device="cpu", reporter=NoSpace(), save_every=1e-9)
    assert not (tmp_path / "run").exists()  # nothing was worth keeping


@pytest.mark.parametrize("save_every", [1e-9, 30.0], ids=["a checkpoint", "metrics"])
def test_a_folder_that_is_removed_meanwhile_does_not_come_back(tmp_path: Path, save_every: float) -> None:
    class Removes(Reporter):
        def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
            shutil.rmtree(folder)

    with pytest.raises(OSError, match=r"(could not write checkpoint|cannot write to) .*: No such file or directory$"):
        train.fit(recipe(), out=tmp_path / "run", device="cpu", reporter=Removes(), save_every=save_every)
    assert not (tmp_path / "run").exists()


def test_metrics_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")

    class Links(Reporter):
        def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
            (folder / "metrics.jsonl").symlink_to(tmp_path / "mine")

    with pytest.raises(OSError, match=r"cannot write to .*metrics\.jsonl: Too many levels of symbolic links"):
        train.fit(recipe("epochs=1"), out=tmp_path / "run", device="cpu", reporter=Links())
    assert (tmp_path / "mine").read_text() == "mine"


def test_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot write to .*file/run: Not a directory; choose another folder"):
        train.fit(recipe(), out=tmp_path / "file" / "run")


def test_a_short_beginning_and_rare_evaluation(tmp_path: Path) -> None:
    settings = ("timesteps=3", "short_timesteps=1", "short_epochs=2", "evaluate_every=2")
    rows = train.fit(recipe(*settings), out=tmp_path / "run", device="cpu").rows()
    assert [row["timesteps"] for row in rows] == [1, 1, 3]
    assert ["test_accuracy" in row for row in rows] == [False, True, True]


@pytest.mark.parametrize("setting", ["memory=packed", "memory=recompute", "precision=bf16", "loss=steps"])
def test_options_reach_the_network(tmp_path: Path, setting: str) -> None:
    rows = train.fit(recipe(setting, "epochs=2"), out=tmp_path / "run", device="cpu").rows()
    assert rows[-1]["loss"] < rows[0]["loss"]


class Losses(Reporter):
    def __init__(self) -> None:
        self.values: list[float] = []

    def due(self) -> bool:
        return True

    def step(self, done: int, loss: float, accuracy: float, speed: float) -> None:
        self.values.append(loss)  # the mean over the epoch so far


def test_golden_losses_of_the_demo_in_float64(tmp_path: Path) -> None:
    losses = Losses()
    train.fit(recipes.get("demo").changed(["precision=fp64", "epochs=1"]), out=tmp_path / "run", reporter=losses)
    if os.environ.get("RHEOBASE_WRITE_GOLDEN"):
        GOLDEN.write_text("".join(f"{i} {loss!r}\n" for i, loss in enumerate(losses.values[:20], 1)))
    golden = [float(line.split()[1]) for line in GOLDEN.read_text().splitlines()]
    assert len(golden) == 20
    assert losses.values[:20] == pytest.approx(golden, rel=1e-9)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("fp64", 1e-9), ("bf16", 1e-2), ("fp16", 1e-2)])
def test_on_a_gpu_the_captured_step_is_the_eager_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, tolerance: float
) -> None:
    used: list[Step] = []

    def spy(step: Step, device: torch.device, *others: Any) -> Step:
        used.append(capture(step, device, *others))
        return used[-1]

    settings = recipe(f"precision={precision}", "average=0.8", "epochs=2", "batch_size=64")
    monkeypatch.setattr(trainer, "capture", spy)
    captured = train.fit(settings, out=tmp_path / "captured", device="cuda").rows()
    (step,) = used
    assert isinstance(step, CapturedStep)
    assert step.outputs, "it was never captured"
    monkeypatch.setattr(trainer, "capture", lambda step, *others: step)
    eager = train.fit(settings, out=tmp_path / "eager", device="cuda").rows()
    assert eager[1]["loss"] < 0.95 * eager[0]["loss"], "too little happens to see a difference"
    assert [row["loss"] for row in captured] == pytest.approx([row["loss"] for row in eager], rel=tolerance)


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
