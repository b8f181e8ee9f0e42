"""A user plays: the plugin of docs/plugins.md goes the whole way, and the package is not touched."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from rheobase.deploy.formats import native
from rheobase.train import checkpoint
from rheobase.train.runs import Run
from tests.story.plugin import COMMANDS, PLUGIN, Command, unfinished

pytestmark = pytest.mark.slow


def test_every_command_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rheobase: Command) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PLUGIN)
    printed = {}
    assert len(COMMANDS) == 9
    for command in COMMANDS:
        code, out, err = rheobase(*command.split())
        assert code == 0, f"{command}: {err}"
        printed[command.split()[0]] = out
    assert "stripes_tiny" in printed["recipes"]
    assert "recompute" in printed["plan"]
    last = Run(Path("runs/mine")).rows()[-1]
    assert last["test_accuracy"] > 0.9
    assert "--plugin mine.py" in printed["train"]  # the commands that it proposes can be copied
    assert "test accuracy" in printed["eval"]
    assert "the same network, spike for spike" in printed["verify"]
    assert Path("runs/mine/report.html").stat().st_size > 10_000


def test_integers_onnx_and_predictions(place: Path, rheobase: Command) -> None:
    assert rheobase("export", "run", "--to", "nir", "--int8", "--plugin", "mine.py")[0] == 0
    code, out, _ = rheobase("verify", "run/network-int8.nir", "run", "--plugin", "mine.py")
    assert "0 spikes differ" in out
    assert re.search(r"verdict: (as accurate as|less accurate than) the trained network", out)
    assert code == ("less" in out)
    np.save("rows.npy", (np.arange(8)[:, None] % 4 < 2) * np.full((8, 8), 200, np.uint8))
    for network, plugin in (("run", ["--plugin", "mine.py"]), ("run/network-int8.nir", [])):
        code, out, err = rheobase("predict", network, "rows.npy", *plugin)
        assert (code, "rows.npy: rows" in out) == (0, True), err


def test_onnx(place: Path, rheobase: Command) -> None:
    pytest.importorskip("onnxruntime", reason="the extra rheobase[onnx] is not installed")
    assert rheobase("export", "run", "--to", "onnx", "--plugin", "mine.py")[0] == 0
    code, out, _ = rheobase("verify", "run/network.onnx", "run", "--plugin", "mine.py")
    assert (code, "as accurate as the trained network" in out) == (0, True)


def test_killed_and_resumed_it_is_the_same_run(place: Path, rheobase: Command) -> None:
    command = [sys.executable, "-m", "rheobase", "train", "stripes_tiny", "--plugin", "mine.py", "--out", "killed"]
    process = subprocess.Popen([*command, "--save-every", "0"], cwd=place, stdout=subprocess.DEVNULL)
    while not list(Path("killed/checkpoints").glob("0*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(Run(Path("killed")).rows()) < Run(Path("run")).recipe.epochs, "it was at its end already"
    subprocess.run(
        [sys.executable, "-m", "rheobase", "train", "--resume", "killed", "--plugin", "mine.py"],
        cwd=place,
        check=True,
        capture_output=True,
    )
    undisturbed, resumed = (checkpoint.latest(Path(run) / "checkpoints") for run in ("run", "killed"))
    assert undisturbed is not None
    assert resumed is not None
    for group in ("weights", "training"):
        for name, tensor in undisturbed.tensors[group].items():
            assert torch.equal(resumed.tensors[group][name], tensor), name


def test_the_processes_of_torchrun_load_it_too(place: Path) -> None:
    team = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "rheobase", "train", "stripes_tiny"]
    team = [str(Path(sys.executable).with_name(team[0])), *team[1:]]
    words = ["--plugin", "mine.py", "--set", "epochs=1", "--set", "precision=fp64"]
    for command in (
        [*team, "--out", "two"],
        [sys.executable, "-m", "rheobase", "train", "stripes_tiny", "--out", "one"],
    ):
        subprocess.run([*command, *words], cwd=place, check=True, capture_output=True)
    two, one = (Run(Path(folder)).rows()[0] for folder in ("two", "one"))
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-9)  # statistics of its own neuron are joined
    assert two["test_loss"] == pytest.approx(one["test_loss"], rel=1e-9)


@pytest.mark.parametrize("memory", ["packed", "recompute"])
def test_memory_modes_train_the_same_network(place: Path, rheobase: Command, memory: str) -> None:
    words = ("train", "stripes_tiny", "--plugin", "mine.py", "--set", "neuron=lif", "--set", "epochs=1")
    assert rheobase(*words, "--out", "speed")[0] == 0
    assert rheobase(*words, "--set", f"memory={memory}", "--out", memory)[0] == 0
    losses = [Run(Path(folder)).rows()[0]["loss"] for folder in ("speed", memory)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "words", [("eval", "run"), ("fold", "run"), ("export", "run", "--to", "nir"), ("report", "run"), ("analyze", "run")]
)
def test_without_the_plugin_a_command_names_it(place: Path, rheobase: Command, words: tuple[str, ...]) -> None:
    code, _, err = rheobase(*words)
    assert code == 1
    assert err == "error: run needs the network 'tiny' of mine.py; add --plugin mine.py\n"


def test_a_run_keeps_the_source_and_notices_a_change(place: Path, rheobase: Command) -> None:
    entries = json.loads(Path("run/plugins.json").read_text())
    assert {entry["part"]: entry["name"] for entry in entries} == {
        "network": "tiny", "neuron": "TriangleSoma", "data": "stripes", "loss": "confident", "optimizer": "rms",
    }  # fmt: skip
    (source,) = Path("run/plugins").rglob("*.py")
    assert source.read_text() == PLUGIN
    assert "changed" not in rheobase("train", "--resume", unfinished(Path("run")), "--plugin", "mine.py")[2]
    Path("mine.py").write_text(f"{PLUGIN}\n# changed")
    code, _, err = rheobase("train", "--resume", unfinished(Path("run")), "--plugin", "mine.py")
    assert code == 0
    assert "the network 'tiny' is not the one that run was started with: mine.py has changed" in err


def test_a_hostile_run_folder_runs_nothing(place: Path, rheobase: Command) -> None:
    Path("evil.py").write_text("import pathlib\npathlib.Path('done').touch()")
    entry = {"part": "network", "name": "evil", "plugin": "evil.py\x1b[31m", "sha256": "0" * 64}
    Path("run/plugins.json").write_text(json.dumps([entry]))
    for copy in Path("run/plugins").rglob("*.py"):
        copy.write_text(Path("evil.py").read_text())
    unfinished(Path("run"))
    for words in (("eval", "run"), ("train", "--resume", "run"), ("report", "run")):
        code, _, err = rheobase(*words)
        assert code == 1
        assert "evil.py?[31m" in err
        assert "\x1b" not in err
    assert not Path("done").exists()


def test_dynamics_that_folding_does_not_know(place: Path, rheobase: Command) -> None:
    Path("integrator.py").write_text(
        "from rheobase.nn import ReferenceSoma\n"
        "from rheobase.plugins import neuron\n\n"
        "@neuron\nclass Integrator(ReferenceSoma):\n"
        "    def fire(self, current):\n        return self.spike(current.cumsum(0))\n"
    )
    both = ("--plugin", "mine.py", "--plugin", "integrator.py")
    changed = ("--set", "neuron=Integrator", "--set", "epochs=1")
    assert rheobase("train", "stripes_tiny", *changed, "--out", "other", *both)[0] == 0
    for words in (("fold", "other"), ("export", "other", "--to", "nir")):
        code, _, err = rheobase(*words, *both)
        assert (code, err.count("\n")) == (1, 1)
        assert "error: fold: the neurons of soma1 (Integrator) have dynamics or a normalisation of their own" in err
    for words in (("eval", "other"), ("report", "other"), ("analyze", "other")):
        code, out, err = rheobase(*words, *both)
        assert code == 0, err
    assert "number of operations unknown: fold: the neurons of soma1 (Integrator)" in out


def test_a_network_of_ours_with_a_neuron_of_theirs(place: Path, rheobase: Command) -> None:
    changed = ("--set", "network=resnet8", "--set", "epochs=1")
    assert rheobase("train", "stripes_tiny", *changed, "--out", "ours", "--plugin", "mine.py")[0] == 0
    code, _, err = rheobase("fold", "ours", "--plugin", "mine.py")
    assert code == 0, err
    assert native.load("ours/folded.safetensors").info["recipe"]["neuron"] == "TriangleSoma"


def test_bad_parts_of_a_recipe_are_one_sentence(place: Path, rheobase: Command) -> None:
    for setting in ("network=tny", "loss=cross", "optimizer=lion", "neuron=spike", "data=dots"):
        kind, _, name = setting.partition("=")
        code, _, err = rheobase("train", "stripes_tiny", "--plugin", "mine.py", "--set", setting, "--out", "bad")
        assert code == 1
        kind = "dataset" if kind == "data" else kind
        assert re.match(
            rf"error: unknown {kind} '{name}'.*; choose one of .*, or give the file that defines it with --pl", err
        )
        assert not Path("bad").exists()


def test_an_exported_file_is_evaluated_with_the_parts_it_still_needs(place: Path, rheobase: Command) -> None:
    assert rheobase("export", "run", "--to", "nir", "--plugin", "mine.py")[0] == 0
    Path("rest.py").write_text(PLUGIN.replace("@network\n", "").replace("@neuron\n", ""))
    code, out, err = rheobase("eval", "run/network.nir", "--plugin", "rest.py")
    assert (code, "test accuracy" in out) == (0, True), err
    assert rheobase("eval", "run/network.nir")[2].startswith("error: unknown dataset 'stripes'; choose one of")


def test_a_module_beside_the_plugin_is_part_of_it(place: Path, rheobase: Command) -> None:
    Path("helping.py").write_text("factor = 1.0\n")
    Path("with_help.py").write_text(PLUGIN.replace("import torch\n", "import torch\nimport helping\n", 1))
    words = ("train", "stripes_tiny", "--set", "epochs=1", "--plugin", "with_help.py", "--out", "helped")
    assert rheobase(*words)[0] == 0
    assert {path.name for path in Path("helped/plugins").rglob("*.py")} == {"with_help.py", "helping.py"}
    Path("helping.py").write_text("factor = 2.0\n")
    del sys.modules["helping"]
    assert "with_help.py has changed" in rheobase("eval", "helped", "--plugin", "with_help.py")[2]
