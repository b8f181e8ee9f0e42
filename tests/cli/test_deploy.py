"""The commands on a small run: fold, convert, export, verify, predict."""

import io
import os
import shutil
from math import inf

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from rheobase import recipes
from rheobase.cli import common
from rheobase.cli.deploy import deploy, register
from rheobase.cli.terminal import Terminal
from rheobase.data import load
from rheobase.data.feed import first_images
from rheobase.deploy.formats import native
from rheobase.train import checkpoint
from rheobase.train.runs import Run
from tests.deploy.networks import randomise

pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")
pytest.importorskip("onnxruntime", reason="the extra rheobase[onnx] is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    run = Run.create(folder, recipes.get("demo").changed(["timesteps=2"]), load("digits").info, torch.device("cpu"))
    torch.manual_seed(0)
    network = randomise(run.network(), 8).float()
    checkpoint.save(run.checkpoints, 1, {"weights": network.state_dict()}, {})
    return folder


def call(*arguments):
    app = typer.Typer(pretty_exceptions_enable=False)
    register(app)
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, ValueError):
        raise result.exception
    return result


def test_fold_and_verify(run):
    result = call("fold", run)
    assert result.exit_code == 0, result.output
    assert "body_2_soma2" in result.output
    result = call("verify", run / "folded.safetensors", run, "--images", 4)
    assert result.exit_code == 0, result.output
    assert "verdict: the same network, spike for spike" in result.output


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        (["--to", "nir"], "network.nir", "spike for spike"),
        (["--to", "nir", "--form", "portable"], "network-portable.nir", "1 image: 0 spikes differ"),
        (["--to", "onnx"], "network.onnx", "as accurate as the trained network"),
    ],
)
def test_export_and_verify(run, options, name, words):
    assert call("export", run, *options).exit_code == 0
    result = call("verify", run / name, run, "--images", 4)
    assert result.exit_code == 0, result.output
    assert words in result.output


def test_deploy_in_few_words(run, capsys):
    deploy(run)
    words = " ".join(capsys.readouterr().out.split())
    assert "network.nir: at most 0.0000 % of spikes differ" in words
    assert "the same network, spike for spike" in words


def test_int8_is_exact_in_the_simulator(run):
    assert call("export", run, "--to", "nir", "--int8").exit_code == 0
    output = call("verify", run / "network-int8.nir", run, "--images", 4).output
    assert "1 image: 0 spikes differ" in output  # random weights: nothing is said about the accuracy


def test_weights_of_16_bits_are_exact_too(run):
    for kind in ("nir", "onnx"):
        assert call("export", run, "--to", kind, "--int16").exit_code == 0
        output = call("verify", run / f"network-int16.{kind}", run, "--images", 4).output
        assert "NOT" not in output
    with pytest.raises(ValueError, match="--int8 and --int16 exclude each other"):
        call("export", run, "--to", "nir", "--int8", "--int16")


@pytest.mark.parametrize("bits", [8, 16])
def test_integers_that_lose_too_much_name_what_helps(run, tmp_path, monkeypatch, bits):
    monkeypatch.setattr("rheobase.tasks.verify.LOSS_INT8", -1.0)  # nothing is accurate enough
    file = tmp_path / "net.onnx"
    call("export", run, "--to", "onnx", f"--int{bits}", "--out", file)
    result = call("verify", file, run, "--images", 4)
    assert result.exit_code == 1
    assert "verdict: less accurate than the trained network" in result.output
    hints = " ".join(result.output.split("next:")[1].split())
    again = f"rheobase export {run} --to onnx"
    finer = f"{again} --int16 weights of 16 bits: fewer spikes change "
    assert hints == f"{finer if bits == 8 else ''}{again} floating point: nothing is lost"


def test_integers_that_take_long_are_told_of(run, here, monkeypatch):
    command = ["export", str(run), "--to", "nir", "--int8", "--device", "cpu", "--out", "a.nir"]
    monkeypatch.setattr(common, "PATIENCE", inf)  # a few seconds need no word
    assert here(*command)[2] == ""
    monkeypatch.setattr(common, "PATIENCE", 0.0)
    _, _, messages = here(*command)
    assert messages.splitlines() == [f"finding integers: {i} of 8 layers done" for i in range(8)]


def test_measurements_that_take_long_are_told_of(run, here, monkeypatch):
    assert here("fold", str(run), "--out", "net.safetensors")[0] == 0
    commands = {
        ("eval", str(run)): ["evaluating"],
        ("eval", str(run), "--sweep"): ["evaluating"],
        ("eval", "net.safetensors"): ["evaluating"],
        ("verify", "net.safetensors", str(run)): ["comparing accuracies"] * 2,
    }
    for command, words in commands.items():
        monkeypatch.setattr(common, "PATIENCE", inf)
        assert here(*command)[2] == ""
        monkeypatch.setattr(common, "PATIENCE", 0.0)
        messages = here(*command)[2].splitlines()
        assert messages == [f"{word}: {done} of 359 images done" for word in words for done in (256, 359)]


def test_a_terminal_has_one_line_of_progress(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes anything a terminal
    shown, terminal = io.StringIO(), Terminal()
    terminal.file = shown
    monkeypatch.setattr(common, "errors", terminal)
    monkeypatch.setattr(common, "PATIENCE", 0.0)
    with common.how_far("counting", "sheep") as tell:
        for i in range(3):
            tell(i, 3)
    assert "counting: 2 of 3 sheep done" in shown.getvalue()


@pytest.fixture(scope="module")
def soft(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "soft"
    recipe = recipes.get("demo").changed(["timesteps=2", "reset=soft", "learn_decay=channel"])
    run = Run.create(folder, recipe, load("digits").info, torch.device("cpu"))
    torch.manual_seed(0)
    checkpoint.save(run.checkpoints, 1, {"weights": randomise(run.network(), 8).float().state_dict()}, {})
    return folder


def test_soft_resets_go_where_they_are_known(soft):
    assert call("fold", soft).exit_code == 0
    assert "spike for spike" in call("verify", soft / "folded.safetensors", soft, "--images", 4).output
    assert call("export", soft, "--to", "onnx").exit_code == 0
    assert "as accurate as the trained" in call("verify", soft / "network.onnx", soft, "--images", 4).output
    with pytest.raises(ValueError, match=r"^cannot express 'soma' in NIR, .* soft reset; export to onnx or native"):
        call("export", soft, "--to", "nir")
    assert not list(soft.glob("*.nir"))


def test_a_changed_file_is_found_out(run, tmp_path):
    from rheobase.deploy.formats import native

    call("fold", run, "--out", tmp_path / "net.safetensors")
    network = native.load(tmp_path / "net.safetensors")
    network.nodes["head_decode"].bias[3] += 100
    native.save(network, tmp_path / "net.safetensors")
    result = call("verify", tmp_path / "net.safetensors", run, "--images", 4)
    assert result.exit_code == 1
    assert "NOT the same network" in result.output


def test_other_logits_are_not_the_same_network(run, tmp_path):
    from rheobase.deploy.formats import native

    call("fold", run, "--out", tmp_path / "net.safetensors")
    network = native.load(tmp_path / "net.safetensors")
    with torch.no_grad():
        for parameter in network.nodes["head_decode"].parameters():
            parameter *= 7
    native.save(network, tmp_path / "net.safetensors")
    output = call("verify", tmp_path / "net.safetensors", run, "--images", 4).output
    assert "verdict: as accurate as the trained network" in output


def test_more_images_than_a_batch_has(run):
    assert len(first_images(load("digits"), Run(run).recipe, 300, torch.float32)[0]) == 300


def test_a_file_of_others_is_not_overwritten(run, tmp_path, monkeypatch):
    call("export", run, "--to", "nir")
    monkeypatch.chdir(tmp_path)
    call("export", run / "network.nir", "--to", "nir")
    with pytest.raises(ValueError, match=r"^network\.nir already exists; choose another file with --out"):
        call("export", run / "network.nir", "--to", "nir")
    for wrong in ("net.txt", "nowhere/net.nir"):
        with pytest.raises(ValueError, match=f"^{wrong}: "):
            call("export", run, "--to", "nir", "--out", wrong)
    with pytest.raises(ValueError, match="the format onnx has no form 'portable'"):
        call("export", run, "--to", "onnx", "--form", "portable")
    with pytest.raises(ValueError, match="in the canonical form; leave out --form, --int8 or --int16"):
        call("export", run, "--to", "nir", "--form", "portable", "--int8")


def test_a_picture_that_cannot_be_read_costs_itself(run, tmp_path):
    np.save(tmp_path / "b.npy", load("digits").test.images[5].numpy())
    (tmp_path / "a.npy").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="1 of 2 files could not be read"):
        call("predict", run, tmp_path)


def test_a_file_of_another_run_is_refused(run, tmp_path):
    from rheobase.deploy.formats import native

    call("fold", run, "--out", tmp_path / "net.safetensors")
    network = native.load(tmp_path / "net.safetensors")
    network.info["data"]["classes"] = [f"class {i}" for i in range(10)]
    native.save(network, tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match="differ in their classes"):
        call("verify", tmp_path / "net.safetensors", run)


def test_predict_from_run_and_files(run, tmp_path):
    image = load("digits").test.images[5].numpy()
    np.save(tmp_path / "five.npy", image)
    for options in (["--to", "nir"], ["--to", "onnx"], ["--to", "nir", "--int8"]):
        call("export", run, *options)
    call("fold", run)
    sources = [run, *(run / n for n in ("folded.safetensors", "network.nir", "network.onnx", "network-int8.nir"))]
    rows = []
    for source in sources:
        result = call("predict", source, tmp_path / "five.npy", "--top", 2, "--device", "cpu")
        assert result.exit_code == 0, result.output
        rows.append([line.split(": ")[1] for line in result.output.splitlines()])
    assert all(row == rows[0] for row in rows[:4])  # int8 may differ
    assert len(rows[4]) == 1
    with pytest.raises(
        ValueError, match=r"network\.onnx is an ONNX file, which runs only on the CPU; use --device cpu"
    ):
        call("predict", run / "network.onnx", tmp_path / "five.npy", "--device", "cuda")


def test_predict_pictures_in_a_folder(run, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="the extra rheobase[images] is not installed")
    pixels = load("digits").test.images[:2, 0].numpy()
    for i, p in enumerate(pixels):
        image.fromarray(p).save(tmp_path / f"{i}.png")
        np.save(tmp_path / f"{i}.npy", p)
    result = call("predict", run, tmp_path)
    lines = [line.split(": ")[1] for line in result.output.splitlines()]
    assert len(lines) == 4
    assert lines[0] == lines[1]  # 0.npy and 0.png
    assert lines[2] == lines[3]


def test_predict_leaves_out_what_cannot_be_opened(run, here, tmp_path):
    np.save(tmp_path / "a.npy", load("digits").test.images[0].numpy())
    (tmp_path / "b.png").symlink_to("nowhere")
    os.mkfifo(tmp_path / "c.png")
    code, output, messages = here("predict", str(run), ".")
    assert (code, messages) == (1, "error: 2 of 3 files could not be read\n")
    assert output.startswith("a.npy: ")
    assert "skipped: b.png: No such file or directory\n" in output
    assert "skipped: cannot read the image c.png: c.png is not a plain file\n" in output
    assert here("predict", str(run), "c.png")[2] == "error: cannot read the image c.png: c.png is not a plain file\n"


def test_wrong_arguments_are_explained(run, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "small.npy", np.zeros((3, 4)))
    for path, words in [
        ("missing.png", "no such file"),
        ("bad.png", "cannot read the image"),
        ("empty", "no images in this folder"),
        ("small.npy", "expected an array"),
    ]:
        with pytest.raises(ValueError, match=words):
            call("predict", run, tmp_path / path)
    with pytest.raises(ValueError, match="expected a file that ends in"):
        call("predict", tmp_path / "bad.png", tmp_path / "bad.png")
    with pytest.raises(ValueError, match=r"recipe\.json"):
        call("fold", tmp_path)


def test_integers_are_judged_alike_in_every_format(run):
    verdicts = []
    for kind in ("nir", "onnx"):
        assert call("export", run, "--to", kind, "--int8").exit_code == 0
        output = call("verify", run / f"network-int8.{kind}", run, "--images", 4).output
        verdicts.append(output.split("verdict: ")[1].splitlines()[0])
    assert verdicts[0] == verdicts[1]
    assert "NOT" not in verdicts[0]  # which is said of float files


def test_names_are_shown_as_they_are_and_hints_can_be_copied(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "a [old] run")
    output = call("fold", other).output
    assert f"wrote {other / 'folded.safetensors'}" in output
    assert f"rheobase verify '{other / 'folded.safetensors'}' '{other}'" in output


def test_a_fold_that_fails_writes_nothing(run, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise ValueError("no data")

    monkeypatch.setattr("rheobase.train.runs.load_data", fail)
    with pytest.raises(ValueError, match="no data"):
        call("fold", run, "--out", tmp_path / "net.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_damaged_description_of_the_data_is_named(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "run")
    for content, message in (("{}", ": .* has no name; restore the file"), ("[]", " is not valid JSON; restore it")):
        (other / "data.json").write_text(content)
        with pytest.raises(ValueError, match=rf"data\.json{message}"):
            call("fold", other)


@pytest.fixture(scope="module")
def relu(tmp_path_factory):
    """The run of a ReLU network, with its statistics but untrained."""
    folder = tmp_path_factory.mktemp("runs") / "relu"
    recipe = recipes.get("demo").changed(["timesteps=1", "neuron=relu"])
    run = Run.create(folder, recipe, load("digits").info, torch.device("cpu"))
    network = run.network().train()
    with torch.no_grad():
        network(first_images(load("digits"), recipe, 64, torch.float32)[0], 1)
    checkpoint.save(run.checkpoints, 1, {"weights": network.state_dict()}, {})
    return folder


def test_convert_then_export_verify_and_predict(relu, tmp_path):
    result = call("convert", relu, "--method", "calibrated", "--timesteps", 3, "--images", 40)
    assert result.exit_code == 0, result.output
    assert "initial potential" in result.output
    assert f"wrote {relu / 'calibrated-t3.safetensors'}: integrate-and-fire neurons, soft reset" in result.output
    made = relu / "calibrated-t3.safetensors"
    low, high = (float(v) for v in native.load(made).nodes["soma"].v_th.aminmax())  # a threshold for each channel
    assert f"{low:.3f} to {high:.3f}" in result.output
    assert call("export", made, "--to", "onnx", "--out", tmp_path / "network.onnx").exit_code == 0
    result = call("verify", tmp_path / "network.onnx", made)
    assert result.exit_code == 0, result.output
    np.save(tmp_path / "image.npy", np.zeros((1, 8, 8), np.float32))
    assert "%" in call("predict", made, tmp_path / "image.npy").output
    with pytest.raises(ValueError, match="whose neurons cannot have a soft reset"):
        call("export", made, "--to", "nir", "--out", tmp_path / "network.nir")
    assert not (tmp_path / "network.nir").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--method", "rmp", "--reset", "hard"], "method rmp has no reset; leave it out"),
        (["--method", "qcfs"], "method qcfs needs a network that was trained with neuron=qcfs"),
        (["--method", "rmp", "--percentile", 0], "expected a percentile above 0 and up to 100, got 0"),
    ],
)
def test_what_convert_refuses(relu, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        call("convert", relu, "--timesteps", 5, *options)
    assert not list(relu.glob("*-t5.*"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["report"],
        ["analyze"],
        ["paper", "fig6"],
        ["paper", "table6"],
        ["fold"],
        ["export", "--to", "nir"],
        ["eval", "--sweep"],
    ],
    ids=str,
)
def test_what_needs_spikes_says_of_a_relu_network_to_convert_it(relu, here, arguments):
    before = sorted(relu.iterdir())
    code, output, messages = here(*arguments, str(relu))
    assert (code, output) == (1, "")
    assert "; make a spiking network of it with `rheobase convert`, and give that file" in messages
    assert sorted(relu.iterdir()) == before


def test_only_relu_networks_are_converted(run):
    with pytest.raises(ValueError, match="are not ReLUs; give a network that was trained with neuron=relu"):
        call("convert", run, "--method", "rmp", "--timesteps", 5)
