"""Names that would act on a terminal, and a reader of the output that goes away."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rheobase.cli.common import table
from rheobase.cli.terminal import Terminal, one_line
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


def test_errors_are_one_line_without_control_characters(here: Here) -> None:
    name = "a\n\x1b[31m[bold]:cat:.npy"
    code, output, messages = here("recording", name)
    assert (code, output) == (1, "")
    assert messages == "error: cannot read a\\n\\x1b[31m[bold]:cat:.npy: No such file or directory\n"


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


def test_a_memory_error_is_a_sentence(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("rheobase.data.events.read", full)
    code, _, messages = here("recording", "a.npz")
    assert (code, messages.startswith("error: out of memory; ")) == (1, True)
    assert messages.count("\n") == 1


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
