"""A recipe in bf16 is computed in another precision where the hardware cannot multiply in bf16."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from rheobase import train
from rheobase.deploy.formats import native
from rheobase.tasks import export
from rheobase.tasks.evaluate import evaluate_run
from rheobase.tasks.open import as_run, folded
from rheobase.train import loop, plan, step, trainer
from rheobase.train.progress import Reporter
from rheobase.train.runs import Run
from rheobase.train.step import for_device
from tests.train.short_runs import StopAt, final, recipe

pytestmark = pytest.mark.usefixtures("one_thread")

SLOW = "computes in fp32, because bf16 would be slow on this CPU"
BF16 = recipe("precision=bf16")


class Notes(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, sentence: str) -> None:
        self.said.append(sentence)


@pytest.fixture(params=[True, False])
def fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the CPU has bf16."""
    monkeypatch.setattr(step, "has_bf16", lambda: request.param)
    return bool(request.param)


def test_the_device_decides(fast: bool) -> None:
    assert for_device(BF16, torch.device("cpu")).precision == ("bf16" if fast else "fp32")
    for precision in ("fp64", "fp32", "fp16"):
        other = recipe(f"precision={precision}")
        assert for_device(other, torch.device("cpu")) == other


@pytest.mark.parametrize(
    ("capability", "precision"), [((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")]
)
def test_an_old_gpu_computes_in_fp16(
    capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", {gpu: capability}.__getitem__)
    assert for_device(BF16, gpu).precision == precision
    assert for_device(recipe("precision=fp32"), gpu) == recipe("precision=fp32")


def test_a_run_computes_as_the_device_decides(fast: bool, whole: Path, tmp_path: Path) -> None:
    notes = Notes()
    run = train.fit(BF16, out=tmp_path / "run", device="cpu", reporter=notes)
    assert notes.said == ([] if fast else [SLOW])
    assert run.recipe == BF16  # on another machine, it would be computed in bf16
    assert run.read("environment.json")["precision"] == ("bf16" if fast else "fp32")
    own, in_fp32 = final(tmp_path / "run"), final(whole)
    assert all(torch.equal(own[name], in_fp32[name]) for name in own) is not fast
    found, last = evaluate_run(run, device="cpu"), run.rows()[-1]
    assert (found.accuracy, found.loss) == (last["test_accuracy"], last["test_loss"])
    assert found.precision == run.precision


def test_a_run_that_continues_in_another_precision_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "has_bf16", lambda: True)
    with pytest.raises(train.Interrupted):
        train.fit(BF16, out=tmp_path, device="cpu", reporter=StopAt(7))
    monkeypatch.setattr(step, "has_bf16", lambda: False)
    notes = Notes()
    train.fit(None, out=tmp_path, resume=True, device="cpu", reporter=notes)
    assert notes.said == [SLOW, "started in bf16 and continues in fp32: other rounding"]
    assert len(Run(tmp_path).rows()) == BF16.epochs


def test_a_run_may_continue_in_fp16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(train.Interrupted):
        train.fit(recipe("precision=fp32"), out=tmp_path, device="cpu", reporter=StopAt(7))
    for module in (loop, trainer):
        monkeypatch.setattr(module, "for_device", lambda own, device: replace(own, precision="fp16"))
    run = train.fit(None, out=tmp_path, resume=True, device="cpu")
    assert len(run.rows()) == BF16.epochs
    assert run.trained().state["scaler"]


def test_a_run_from_before_precisions_were_recorded_computed_in_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "has_bf16", lambda: True)
    with pytest.raises(train.Interrupted):
        train.fit(BF16, out=tmp_path, device="cpu", reporter=StopAt(7))
    environment = Run(tmp_path).read("environment.json")
    del environment["precision"]
    (tmp_path / "environment.json").write_text(json.dumps(environment))
    monkeypatch.setattr(step, "has_bf16", lambda: False)
    notes = Notes()
    train.fit(None, out=tmp_path, resume=True, device="cpu", reporter=notes)
    assert notes.said[1:] == ["started in bf16 and continues in fp32: other rounding"]


def test_an_integer_network_is_evaluated_in_fp64(whole: Path, tmp_path: Path) -> None:
    run, file = Run(whole), tmp_path / "integer.safetensors"
    export.write(folded(run)[1], file, native, run, bits=8, data=None)
    assert evaluate_run(file, device="cpu").precision == "fp64"


def test_deployed_networks_run_in_fp16_on_an_old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert as_run(BF16, nn.Identity(), torch.device("cuda")).precision == "fp16"
    assert as_run(BF16, nn.Identity(), torch.device("cpu")).precision == "fp32"


def test_plan_times_what_a_run_computes_and_predicts_a_gpu_in_bf16(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def note(*arguments: object, **options: object) -> step.Step:
        computed.append(next(a for a in arguments if isinstance(a, type(BF16))).precision)
        return made(*arguments, **options)  # type: ignore[arg-type]

    made = step.make_step
    monkeypatch.setattr(plan, "make_step", note)
    plan.times(BF16, seconds=0.0)
    assert set(computed) == {"bf16" if fast else "fp32"}
    assert plan.tensor_bytes(BF16, 64) < plan.tensor_bytes(recipe(), 64)
