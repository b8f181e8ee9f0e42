"""Nobody pays for torch's compiler who does not compile, and who does finds everything as torch made it."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rheobase.kernels.light import COMPILER, lighten

TRAIN = """
import sys
from pathlib import Path
from rheobase import recipes, train
from rheobase.tasks.evaluate import evaluate_run
for optimizer in ("sgd", "adamw"):
    changes = ["epochs=1", "batch_size=512", "timesteps=1", "precision=bf16", f"optimizer={optimizer}"]
    run = train.fit(recipes.get("demo").changed(changes), out=Path(sys.argv[1]) / optimizer, device="cpu")
    evaluate_run(run.folder, device="cpu")
print("torch._dynamo" in sys.modules)
"""


def test_training_and_evaluation_do_not_import_the_compiler(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", TRAIN, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


def test_with_the_compiler_there_it_is_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.library.custom_op("rheobase_test::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return 2 * x

    asked = []
    (device,) = double._backend_fns
    kept_out = double._backend_fns[device]

    def precaution(*arguments: Tensor) -> Tensor:
        asked.append(1)
        return kept_out(*arguments)

    precaution.__wrapped__ = kept_out  # type: ignore[attr-defined]
    double._backend_fns[device] = precaution
    lighten([double, "no operator"])
    monkeypatch.delitem(sys.modules, COMPILER, raising=False)
    assert torch.equal(double(torch.ones(3)), torch.full((3,), 2.0))
    assert not asked
    monkeypatch.undo()
    import_module(COMPILER)
    assert torch.equal(double(torch.ones(3)), torch.full((3,), 2.0))
    assert asked
