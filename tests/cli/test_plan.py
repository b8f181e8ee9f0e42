"""What a training would take, in tables and for programs."""

import re
from dataclasses import asdict
from typing import Any

import pytest
from torch import Tensor, nn

from rheobase import plugins, recipes
from rheobase.cli.plan import _print_forecast
from rheobase.data import expected
from rheobase.nn import Conv2d, Soma, as_sequence
from rheobase.train import plan, progress, scale
from tests.cli.here import Here
from tests.cli.test_lists import document, words


class OneLayer(nn.Module):
    """Small: a plan runs it many times."""

    def __init__(self, num_classes: int, in_channels: int, image_size: int, **neuron: Any) -> None:
        super().__init__()
        self.conv, self.soma = Conv2d(in_channels, 6, 3, padding=1), Soma(6, **neuron)
        self.decode = nn.Linear(6 * image_size**2, num_classes)

    def forward(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        return self.decode(self.soma(self.conv(as_sequence(x, timesteps))).flatten(2))


@pytest.fixture(autouse=True)
def one_layer() -> None:
    plugins.network(OneLayer)


SMALL = ("plan", "demo", "--set=network=OneLayer", "--set=timesteps=3", "--device=cpu")


def test_plan_as_json(here: Here) -> None:
    found = document(here, *SMALL, "--memory", "1.5", "--gpus", "3")
    recipe, data = recipes.get("demo").changed(["network=OneLayer", "timesteps=3"]), expected("digits")
    assert (found["gpus"], found["nodes"], found["batch_per_gpu"]) == (3, 1, 22)
    assert (found["recipe"], found["gpu_bytes"]) == (asdict(recipe), 3 * 2**29)
    free = found["gpu_bytes"] - found["reserved_bytes"]
    for mode, variant in zip(found["modes"], plan.modes(recipe), strict=True):
        assert mode["memory"] == variant.memory
        assert mode["peak_bytes"] == plan.peak_bytes(variant, 22, grouped=True) > plan.peak_bytes(variant, 22)
        assert mode["largest_batch"] == plan.largest_batch(variant, free, grouped=True)
    same = asdict(scale.forecast(recipe, data, scale.cluster(3, 1)))
    assert found["scale"] == same | {"predictions": list(same["predictions"])}
    assert [p["gpus"] for p in found["scale"]["predictions"]] == [1, 2, 3]


def test_a_cpu_is_timed_for_itself_only(here: Here) -> None:
    alone, many = (document(here, *SMALL, *gpus)["seconds"] for gpus in ((), ("--gpus", "2")))
    assert alone["step"] > 0
    assert many is None
    assert ", measured in fp32: about " in here(*SMALL)[1]
    assert " per step of 1438 images, " in here(*SMALL, "--set=batch_size=5000")[1]  # a small set is one batch
    assert re.search(r" for 1 epoch\b", here(*SMALL, "--set=epochs=1")[1])
    many_steps = (*SMALL, "--set=timesteps=96")
    assert ", measured in fp32 with 32 of 96 timesteps: about " in here(*many_steps)[1]
    assert [document(here, *words)["timed_timesteps"] for words in (SMALL, many_steps)] == [3, 32]
    unknown = here(*SMALL, "--set=data=folder", "--set=image_size=8")[1]
    assert " per step of 64 images; give --data for the time of an epoch" in unknown


def test_times_measured_on_a_busy_machine_say_so(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1.0, 1e6, 1e12, 1e18])  # waited for a core, before and after
    monkeypatch.setattr(progress, "waited_seconds", lambda: next(seconds))
    code, output, _ = here(*SMALL)
    assert code == 0
    (line,) = (line for line in output.splitlines() if ", measured in fp32: about " in line)
    assert " for 20 epochs  (busy machine: waited for a core " in line
    assert document(here, *SMALL, "--gpus", "2")["busy"] is False, "nothing was measured"


def test_the_table_shows_every_setting_and_says_where_it_comes_from(here: Here) -> None:
    code, output, messages = here(*SMALL, "--gpus", "4", "--nodes", "3", "--link", "2.5", "--latency", "40")
    assert (code, messages) == (0, "")
    rows = [line.split() for line in output.splitlines() if line.rstrip().endswith("estimated")]
    assert [row[0] for row in rows] == ["1", "2", "4", "2", "3"]
    assert ", measured in " not in output
    assert "does not fit" not in output
    assert [row[:4] for row in rows[-2:]] == [["2", "x", "4", "8"], ["3", "x", "4", "6"]]
    _, _, predicted = output.partition("NVIDIA H200, predicted")
    assert max(map(len, predicted.splitlines())) <= 80
    assert "One GPU's step of 6 images is estimated: resnet19 of 32 x 32 pixels, T = 4" in words(predicted)
    assert "bf16. The time with fp32 differs." in words(predicted)
    asked = scale.cluster(4, 3, link=2.5, latency=40)
    recipe = recipes.get("demo").changed(["network=OneLayer", "timesteps=3"])
    *_, last = scale.forecast(recipe, expected("digits"), asked).predictions
    assert "A step runs 3 collectives of 0.0158 MB in total." in words(predicted)
    assert f"waits {1e3 * last.statistics:.2g} ms for statistics" in words(predicted)


def test_what_does_not_fit_is_marked_and_a_gpu_here_sets_the_pace(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = recipes.get("cifar10_resnet19_t4")
    found = scale.forecast(recipe, expected("cifar10"), scale.cluster(2, 1), timed=0.1)
    _print_forecast(recipe, found, "Some GPU", "fp16", 200)
    output = words(capsys.readouterr().out)
    assert output.startswith("Some GPU, predicted, without evaluation:")
    assert " 1 256* 100 ms 0 ms 2560 100 % " in output
    assert " 2 128 " in output
    assert f"of an NVIDIA H200 times {found.pace:.2f}, because the whole batch was timed here, in fp16." in output
    assert "differs" not in output
    assert "Batches marked * do not fit with memory=speed." in output
    _print_forecast(recipe, found, "Some GPU", "fp16", 256)
    assert "*" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "0"], "gpus, nodes: expected 1 or more of each, got 0 and 1"),
        (["--nodes", "-1"], "gpus, nodes: expected 1 or more of each, got 1 and -1"),
        (["--nodes", "2", "--link", "0"], "link: expected GB/s above 0, got 0"),
        (["--nodes", "2", "--latency", "nan"], "latency: expected microseconds, 0 or more, got nan"),
        (
            ["--gpus", "2", "--link", "10"],
            "link and latency are for the network between nodes; use them with --nodes 2",
        ),
        (["--gpus", "8", "--nodes", "9"], "72 GPUs need at least as many images in a batch, got 64; use fewer"),
        (["--memory", "inf"], "--memory: expected at least 1 GiB, got inf"),
        (["--memory", "nan"], "--memory: expected at least 1 GiB, got nan"),
        (["--memory", "0.5"], "--memory: expected at least 1 GiB, got 0.5"),
    ],
)
def test_mistakes_are_one_sentence(here: Here, options: list[str], message: str) -> None:
    code, output, said = here(*SMALL, *options)
    assert (code, output) == (1, "")
    assert said.startswith(f"error: {message}")
    assert said.count("\n") == 1
