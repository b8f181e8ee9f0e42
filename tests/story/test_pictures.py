"""A folder of pictures as people have them goes the whole way, and every command that is printed works when copied."""

import html
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rheobase.data.feed import generator
from rheobase.train.runs import PLACE, Run
from tests.story.plugin import Command, unfinished
from tools.keep import keep

pytestmark = pytest.mark.slow

Image = pytest.importorskip("PIL.Image", reason="reading images needs pillow")
SMALL = ("network=resnet8", "image_size=8", "epochs=2", "batch_size=8", "padding=1", "timesteps=2")
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]
KINDS: dict[str, Callable[[torch.Tensor], object]] = {
    "grey.png": lambda p: Image.fromarray(p[..., 0].numpy()),
    "farbig mit Ümläut.png": lambda p: Image.fromarray(p.numpy()),
    "durchsichtig.png": lambda p: Image.fromarray(p.numpy()).convert("RGBA"),
    "sixteen.png": lambda p: Image.fromarray((p[..., 0].int() * 257).to(torch.uint16).numpy()),
    "palette.gif": lambda p: Image.fromarray(p.numpy()).convert("P"),
}


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes, all kinds of files in both, and a damaged one; named by a path with a space, relative to here."""
    folder = Path("my photos")
    monkeypatch.chdir(tmp_path)
    for name, shade in {"Äpfel": 60, "Nüsse": 180}.items():
        (folder / name).mkdir(parents=True)
        for i in range(2):
            for kind, make in KINDS.items():
                pixels = (torch.randint(-30, 30, (9, 12, 3), generator=generator(shade, i)) + shade).to(torch.uint8)
                make(pixels).save(folder / name / f"{i} {kind}")  # type: ignore[attr-defined]
    (folder / "Äpfel" / "kaputt.jpg").write_bytes(b"\xff\xd8\xff damaged")
    return folder


def commands(text: str) -> list[list[str]]:
    """What stands there to be copied: up to two spaces, after which its purpose is told."""
    lines = re.findall(r"^ *(rheobase \S.*?)(?:  .*)?$", text, re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines]


def test_every_printed_command_works(pictures: Path, rheobase: Command) -> None:
    waiting = [["data", "folder", "--root", str(pictures), "--size", "8", "--samples", "0"]]
    done: set[str] = set()
    while waiting:
        words = waiting.pop(0)
        key = " ".join(words)
        if words[0] == "train":
            words = [*words, *SETTINGS, "--out", f"a run {len(done)}"]
        if key in done or (words[0] == "train" and any(k.startswith("train") for k in done)):
            continue
        done.add(key)
        code, out, err = rheobase(*words)
        assert code == 0, f"{words}: {err}"
        waiting += commands(out)
    assert {key.split()[0] for key in done} >= {"data", "train", "eval", "export", "verify"}


@pytest.mark.parametrize("own", [("neuron=relu", "timesteps=1"), ("reset=soft",)], ids=["converted", "soft reset"])
def test_every_command_printed_of_other_networks_works(pictures: Path, rheobase: Command, own: tuple[str, ...]) -> None:
    pytest.importorskip("onnx", reason="the extra rheobase[onnx] is not installed")
    pytest.importorskip("onnxruntime", reason="the extra rheobase[onnx] is not installed")
    settings = [word for setting in own for word in ("--set", setting)]
    code, out, err = rheobase("train", "images_resnet19", "--data", pictures, *SETTINGS, *settings, "--out", "other")
    assert code == 0, err
    waiting, done = [*commands(out), ["convert" if "relu" in own[0] else "fold", "other"]], []
    while waiting:
        words = waiting.pop(0)
        if words[0] == "convert":
            words = ["convert", "other", "--method", "calibrated", "--timesteps", "4"]  # fewer steps than are printed
            waiting.append(["export", "other/calibrated-t4.safetensors", "--to", "onnx"])
        if words in done:
            continue
        done.append(words)
        code, out, err = rheobase(*words)
        assert code == 0, f"{words}: {err}"
        waiting += commands(out)
    assert {words[0] for words in done} >= {"eval", "export", "verify"}


@pytest.fixture
def trained(pictures: Path, rheobase: Command) -> Path:
    code, _, err = rheobase("train", "images_resnet19", "--data", pictures, *SETTINGS, "--out", "run")
    assert code == 0, err
    assert "kaputt.jpg" in err
    return Path("run")


def test_later_commands_know_where_the_data_are(
    trained: Path, pictures: Path, rheobase: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (
        ("fold", trained),
        ("export", trained, "--to", "nir", "--int8"),
        ("verify", trained / "folded.safetensors", trained),
        ("eval", trained / "folded.safetensors"),
        ("eval", trained / "folded.safetensors", "--sweep"),
        ("report", trained),
        ("report", trained / "folded.safetensors", "--out", "deployed.html"),
        ("analyze", trained, "--images", 4),
    ):
        code, out, err = rheobase(*words)
        assert code == 0, f"{words}: {err}"
        assert all("--data" not in words for words in commands(out))
    code, out, _ = rheobase("eval", trained)
    assert (code, "on 4 images (every 5th image, held out from training)" in out) == (0, True)
    page = (trained / "report.html").read_text()
    (again,) = commands(html.unescape(page.split("Reproduce this run")[1].split("</pre>")[0].split("<pre>")[1]))
    code, out, err = rheobase(*again, "--out", "again")
    assert code == 0, err
    assert Run(Path("again")).recipe == Run(trained).recipe
    (further,) = commands(rheobase("train", "--resume", trained)[1])  # it is finished
    assert rheobase(*further, "--out", "further")[0] == 0
    assert Run(Path("further")).start is not None
    monkeypatch.chdir(trained)  # the place is absolute
    assert rheobase("eval", ".")[0] == 0


def test_data_that_are_gone_are_asked_for(trained: Path, pictures: Path, rheobase: Command) -> None:
    pictures.rename("elsewhere")
    unfinished(trained)
    for words in (("eval", trained), ("train", "--resume", trained)):
        code, _, err = rheobase(*words)
        assert code == 1
        assert re.fullmatch(
            r"error: the data of run are no longer in /.*/my photos; give their folder with --data\n", err
        )
    assert rheobase("eval", trained, "--data", "elsewhere")[0] == 0
    assert rheobase("train", "--resume", trained, "--data", "elsewhere")[0] == 0
    assert rheobase("eval", trained)[0] == 0  # they were said to be there
    (trained / PLACE).write_text('{"data": 1}')
    assert "does not name a folder; remove the file" in rheobase("eval", trained)[2]


def test_the_place_stays_on_this_machine(trained: Path, rheobase: Command, tmp_path: Path) -> None:
    assert rheobase("export", trained, "--to", "nir", "--int8")[0] == 0
    keep(trained, tmp_path / "kept")
    shared = [trained / "network-int8.nir", *(p for p in (tmp_path / "kept").iterdir() if p.suffix != ".png")]
    assert (trained / PLACE).exists()
    assert len(shared) > 3
    assert not [p for p in shared if b"my photos" in p.read_bytes()]


def test_pictures_of_all_kinds_are_predicted_and_a_damaged_one_is_named(
    trained: Path, pictures: Path, rheobase: Command
) -> None:
    shutil.copytree(pictures / "Nüsse", "mixed")
    assert rheobase("predict", trained, "mixed")[0] == 0
    shutil.copy(pictures / "Äpfel" / "kaputt.jpg", "mixed")
    code, out, err = rheobase("predict", trained, "mixed")
    assert code == 1
    assert out.count("Nüsse") == 10
    assert "kaputt.jpg" in out
    assert err == "error: 1 of 11 files could not be read\n"


def test_a_size_is_asked_for_by_the_option_of_the_command(pictures: Path, rheobase: Command) -> None:
    code, _, err = rheobase("data", "folder", "--root", pictures)
    assert (code, "add --size 32 to `rheobase data`" in err, err.count("\n")) == (1, True, 1)
