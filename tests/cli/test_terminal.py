"""Names that would act on a terminal, and a reader of the output that goes away."""

import io
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rheobase.cli.common import table
from rheobase.cli.terminal import Terminal, one_line
from rheobase.train.runs import Run
from rheobase.train.stopping import SAVED
from tests.cli.here import Here


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain: é 猫 :cat: [bold]b[/bold]", "plain: é 猫 :cat: [bold]b[/bold]"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\nb\r\tc\x9b1m", "a\\nb\\r\\tc\\x9b1m"),
        ("\u202etxt.exe\u2028\udcff", "\\u202etxt.exe\\u2028\\udcff"),
    ],
)
def test_what_a_terminal_would_act_on_is_written_out(text: str, shown: str) -> None:
    assert one_line(text) == shown


def printed(*things: object) -> str:
    console, file = Terminal(), io.StringIO()
    console.file = file
    for thing in things:
        console.print(thing)
    return file.getvalue()


def test_names_are_printed_as_they_are() -> None:
    assert printed("\x1b[31m:cat: [bold]x[/bold] 12") == "\\x1b[31m:cat: [bold]x[/bold] 12\n"
    assert printed("two\nlines") == "two\nlines\n"
    rows = table("class")
    rows.add_row(":cat: [red]\x1b]0;title\x07")
    assert ":cat: [red]\\x1b]0;title\\x07" in printed(rows)


@pytest.mark.parametrize("words", [("models",), ("eval", "--help")])
def test_a_width_of_zero_is_no_width(words: tuple[str, ...]) -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-m", "rheobase", *words],
            env=os.environ | {"COLUMNS": width},
            capture_output=True,
            text=True,
        ).stdout
        for width in ("0", "80")
    ]
    assert outputs[0] == outputs[1] != ""


def test_errors_are_one_line_without_control_characters(here: Here) -> None:
    name = "a\n\x1b[31m[bold]:cat:.npy"
    code, output, messages = here("recording", name)
    assert (code, output) == (1, "")
    assert messages == "error: cannot read a\\n\\x1b[31m[bold]:cat:.npy: No such file or directory; check the path\n"


def test_class_names_of_a_file_are_shown(here: Here, tmp_path: Path) -> None:
    from dataclasses import asdict

    from rheobase import recipes
    from rheobase.data import expected
    from rheobase.deploy.folding import fold
    from rheobase.deploy.formats import native
    from rheobase.models import build

    network = fold(build("resnet8", num_classes=10, in_channels=1, image_size=8).eval())
    data = expected("digits").as_dict() | {"classes": [f"\x1b[3{i}m:cat:\n[b]{i}" for i in range(10)]}
    network.info.update(recipe=asdict(recipes.get("demo")), data=data)
    native.save(network, tmp_path / "net.safetensors")
    np.save(tmp_path / "a.npy", np.zeros((1, 8, 8), np.float32))
    code, output, _ = here("predict", "net.safetensors", "a.npy", "--top", "10")
    assert code == 0
    assert output.count("\n") == 1
    assert "\\x1b[33m:cat:\\n[b]3 " in output
    assert "\x1b" not in output


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you"),
    ],
)
def test_a_memory_error_is_a_sentence(here: Here, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("rheobase.data.events.read", full)
    code, _, messages = here("recording", "a.npz")
    assert (code, messages) == (1, "error: out of memory; try a machine with more memory\n")


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["eval", "cifar10-resnet19-t2"], "try fewer --timesteps, or --device cpu"),
        (["predict", "cifar10-resnet19-t2", "a.npy"], "try --device cpu"),
        (["train", "demo"], "try a smaller batch_size or fewer timesteps, or --set memory=packed or memory=recompute"),
    ],
)
def test_a_full_gpu_is_told_with_what_the_command_can_change(
    here: Here, monkeypatch: pytest.MonkeyPatch, words: list[str], advice: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr("rheobase.train.choose_device", full)
    monkeypatch.setattr("rheobase.tasks.predict.choose_device", full)
    monkeypatch.setattr("rheobase.tasks.evaluate.choose_device", full)
    code, _, messages = here(*words)
    assert (code, messages) == (1, f"error: the GPU is out of memory; {advice}\n")


def test_a_closed_pipe_ends_nothing() -> None:
    program = (
        "from rheobase.cli.terminal import Terminal\nimport sys\nconsole = Terminal()\n"
        "for i in range(3000): console.print('x' * 100)\n"
        "print('went on', file=sys.stderr)"
    )
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "went on\n")


@pytest.mark.parametrize("ignored", [False, True], ids=["SIGHUP", "ignored"])
def test_a_closed_window_saves_or_under_nohup_ends_nothing(tmp_path: Path, ignored: bool) -> None:
    program = (
        "import os, runpy, signal; os.close(os.open(os.ttyname(0), os.O_RDWR)); "  # the terminal of its session
        f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if ignored else 'SIG_DFL'}); "
        "runpy.run_module('rheobase', run_name='__main__')"
    )
    settings = [f"--set={s}" for s in ("epochs=6", "batch_size=719", "timesteps=1", "width=0.25")]
    ours, theirs = pty.openpty()
    job = subprocess.Popen(
        [sys.executable, "-c", program, "train", "demo", *settings, "--device=cpu", "--out=run"],
        cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while b"epoch 1/6" not in shown:
        shown += os.read(ours, 2**16)
    os.close(ours)
    assert job.wait(timeout=60) == (0 if ignored else SAVED)
    run = Run(tmp_path / "run")
    assert run.trained().step >= 2
    assert (len(run.rows()) == 6) is ignored


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("train demo --out run", "typer"),
        ("train demo --out run", "rheobase.train"),
        ("demo --out run", "torch"),
        ("models", "torch"),
        ("models", "rheobase.extras"),
    ],
)
def test_ctrl_c_is_not_lost_while_modules_are_imported(tmp_path: Path, command: str, module: str) -> None:
    """It comes where Python prints and forgets exceptions, as its import system does now and then."""
    program = f"""
import os, runpy, signal, sys
class Forgetful:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
class Finder:
    def find_spec(self, name, *others):
        if name == {module!r}:
            Forgetful()
sys.meta_path.insert(0, Finder())
sys.argv[1:] = {command.split()}
runpy.run_module("rheobase", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert not (tmp_path / "run").exists()
