"""A user plays: the plugin of docs/plugins.md goes the whole way, and the package is not touched."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from rheobase import plugins
from rheobase.cli import main
from rheobase.cli.common import _plugins
from rheobase.deploy.formats import native
from rheobase.train import checkpoint
from rheobase.train.runs import Run

DOCUMENT = (Path(__file__).parents[1] / "docs" / "plugins.md").read_text()
PLUGIN = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)[0]
COMMANDS = re.findall(r"^rheobase (.*)$", DOCUMENT, re.MULTILINE)

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What a new process knows: our own parts. Call it for another new process."""
    ours = [(shelf, dict(shelf.parts), dict(shelf.origins)) for shelf in plugins.SHELVES]

    def forget() -> None:
        for shelf, parts, origins in ours:
            shelf.restore(parts, origins)
        monkeypatch.setattr(plugins, "_loaded", {})

    return forget


@pytest.fixture
def rheobase(
    fresh: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Run a command line as a new process would: exit code, standard output and errors."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run(*words: object) -> tuple[int, str, str]:
        fresh()
        monkeypatch.setattr(sys, "argv", ["rheobase", *map(str, words)])
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            try:
                main()
                code: int | str | None = 0
            except SystemExit as stop:
                code = stop.code
        out, err = capsys.readouterr()
        return int(code or 0), out, err

    yield run
    _plugins.clear()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mine.py and a run of its recipe, trained in a process of its own."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "mine.py").write_text(PLUGIN)
    command = [sys.executable, "-m", "rheobase", "train", "stripes_tiny", "--plugin", "mine.py", "--out", "run"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder to work in."""
    shutil.copytree(trained, tmp_path / "user")
    monkeypatch.chdir(tmp_path / "user")
    return tmp_path / "user"


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
    assert err == "error: run needs the network 'tiny' of mine.py; name it with --plugin mine.py\n"


def test_a_run_keeps_the_source_and_notices_a_change(place: Path, rheobase: Command) -> None:
    entries = json.loads(Path("run/plugins.json").read_text())
    assert {entry["part"]: entry["name"] for entry in entries} == {
        "network": "tiny", "neuron": "TriangleSoma", "data": "stripes", "loss": "confident", "optimizer": "rms",
    }  # fmt: skip
    (source,) = Path("run/plugins").rglob("*.py")
    assert source.read_text() == PLUGIN
    assert "changed" not in rheobase("train", "--resume", "run", "--plugin", "mine.py")[2]
    Path("mine.py").write_text(f"{PLUGIN}\n# changed")
    code, _, err = rheobase("train", "--resume", "run", "--plugin", "mine.py")
    assert code == 0
    assert "the network 'tiny' is not the one that run began with: mine.py has changed" in err


def test_a_hostile_run_folder_runs_nothing(place: Path, rheobase: Command) -> None:
    Path("evil.py").write_text("import pathlib\npathlib.Path('done').touch()")
    entry = {"part": "network", "name": "evil", "plugin": "evil.py\x1b[31m", "sha256": "0" * 64}
    Path("run/plugins.json").write_text(json.dumps([entry]))
    for copy in Path("run/plugins").rglob("*.py"):
        copy.write_text(Path("evil.py").read_text())
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
        assert "error: fold: the neurons of soma1 (Integrator) have dynamics of their own" in err
    for words in (("eval", "other"), ("report", "other"), ("analyze", "other")):
        code, out, err = rheobase(*words, *both)
        assert code == 0, err
    assert "operations are not known: fold: the neurons of soma1 (Integrator)" in out


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
            rf"error: unknown {kind} '{name}'; choose one of .*, or name the file that has it with --pl", err
        )
        assert not Path("bad").exists()
