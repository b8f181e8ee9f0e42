"""Runs that cannot go on: one sentence, and nothing is lost or half-written."""

import json
import re
import resource
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from rheobase import train
from rheobase.nn import ReferenceSoma
from rheobase.recipes import Recipe
from rheobase.train import step, trainer
from rheobase.train.progress import Reporter
from rheobase.train.runs import Run
from rheobase.train.writing import Writer
from tests.train.short_runs import StopAt, final, recipe

pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_what_fails_before_the_first_step_leaves_no_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Told(Reporter):
        def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
            shown.append("start")

        def stop(self) -> None:
            shown.append("stop")

    def broken_off(writer: Writer, *groups: dict[str, Tensor]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Writer, "reserve", broken_off)
    with pytest.raises(KeyboardInterrupt):
        train.fit(recipe("epochs=1"), out=tmp_path, device="cpu", reporter=Told())
    assert shown.count("start") == shown.count("stop")


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
    with pytest.raises(ValueError, match="has lost its checkpoints and cannot be resumed"):
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


class Steps(ReferenceSoma):
    """A neuron whose author forgot the surrogate."""

    def spike(self, u: Tensor) -> Tensor:
        return (u > self.v_th).to(u.dtype)


def test_parameters_behind_spikes_without_a_surrogate_are_named_once(tmp_path: Path) -> None:
    behind = (
        r"^no gradient reaches (\d+) of (\d+) parameters, so they will not be trained: stem\.weight, .*, \.\.\.; look"
    )
    with pytest.warns(UserWarning, match="no gradient reaches") as told:
        train.fit(recipe("epochs=2"), neuron=Steps, out=tmp_path, device="cpu")
    (found,) = [re.match(behind, str(warning.message)) for warning in told]
    assert found is not None
    reached = {"head.decode.weight", "head.decode.bias"}
    assert int(found[2]) - int(found[1]) == len(reached)


def test_a_loss_that_leads_to_no_parameter(tmp_path: Path) -> None:
    def detached(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
        return nn.functional.cross_entropy(logits.mean(0), labels).detach()

    with pytest.raises(ValueError, match=r"^loss 'detached' of network 'resnet8': no gradient leads from it to any"):
        train.fit(recipe("epochs=1"), loss=detached, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


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
