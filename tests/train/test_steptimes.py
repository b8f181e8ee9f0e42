"""Step times of a GPU that is not here: what was measured comes back, and what was left out is found again."""

from dataclasses import replace
from math import log

import pytest
import torch

from rheobase import models
from rheobase.train.steptimes import Estimate, Step, Table, Work, table
from tools import steptimes as tool

WORK = Work(multiplications=1000, neurons=50, layers=10)
TWICE = Work(multiplications=2000, neurons=100, layers=20)
BIG = Work(multiplications=90_000, neurons=700, layers=30)


def step(timesteps: int, batch: int, seconds: float, network: str = "net", memory: str = "speed") -> Step:
    return Step(network, 32, timesteps, batch, memory, seconds, "step.json")


# 1 s for the 10 layers; then 2 s per image and timestep at N = 10, and 1.5 s from N = 40 on
SMALL = Table(
    device="a GPU",
    precision="bf16",
    seconds_per_layer=0.1,
    seconds_per_multiplication=1e-3,
    seconds_per_neuron=1e-3,
    works={("net", 32): WORK, ("big", 32): BIG},
    steps=(
        step(2, 10, 1 + 2 * 20),
        step(2, 40, 1 + 1.5 * 80),
        step(8, 10, 1 + 3 * 80),
        step(2, 10, 3 + 50 * 20, network="big"),
        step(2, 10, 1 + 4 * 20, memory="packed"),
    ),
)


def estimate(timesteps: int, batch: int, network: str = "net", work: Work = WORK, memory: str = "speed") -> Estimate:
    return SMALL.estimate(network, 32, work, timesteps=timesteps, batch=batch, memory=memory)


@pytest.mark.parametrize(
    ("timesteps", "batch", "seconds", "kind", "basis"),
    [
        (2, 10, 1 + 2 * 20, "measured", "T = 2, N = 10"),
        (2, 20, 1 + 1.75 * 40, "interpolated", "T = 2, N = 10 and 40"),  # halfway, as batches double
        (2, 1, 1 + 2 * 2, "extrapolated", "T = 2, N = 10"),
        (2, 80, 1 + 1.5 * 160, "extrapolated", "T = 2, N = 40"),
        (3, 10, 1 + (2 - 0.5 * log(30 / 20) / log(80 / 20)) * 30, "estimated", "T = 2, N = 10 to 40"),
        (5, 16, 1 + 3 * 80, "estimated", "T = 8, N = 10"),
    ],
)
def test_a_step_by_hand(timesteps: int, batch: int, seconds: float, kind: str, basis: str) -> None:
    found = estimate(timesteps, batch)
    assert found.seconds == pytest.approx(seconds)
    assert (found.kind, found.basis) == (kind, f"net of 32 x 32 pixels, {basis}")


def test_another_network_is_scaled_from_the_nearest() -> None:
    twice = estimate(2, 10, "other", TWICE)  # as much work as 20 images of net, in twice the layers
    assert twice.seconds == pytest.approx(2 + 1.75 * 40)
    assert (twice.kind, twice.basis) == ("estimated", "net of 32 x 32 pixels, T = 2, N = 10 to 40")
    assert estimate(2, 10, "other", replace(BIG, neurons=600)).basis.startswith("big of")
    assert estimate(2, 10, "other", Work(0, 0, 0)).seconds > 0


def test_a_memory_mode_has_times_of_its_own() -> None:
    assert estimate(2, 10, memory="packed").seconds == pytest.approx(1 + 4 * 20)
    assert estimate(2, 10, "big", BIG, memory="packed").basis.startswith("net of")  # where it was measured


def test_the_package_knows_its_own_measurements() -> None:
    for known in table().steps:
        setting = {"timesteps": known.timesteps, "batch": known.batch, "memory": known.memory}
        found = table().estimate(*known.subject, table().works[known.subject], **setting)
        assert found.seconds == pytest.approx(known.seconds)
        assert found.kind == "measured"


def test_a_step_that_is_left_out_is_found_again() -> None:
    """Within 3 % by other batches at the same number of timesteps, within 12 % by other numbers."""
    kinds = []
    for known in table().steps:
        others = tuple(other for other in table().steps if other is not known)
        if not any((other.subject, other.memory) == (known.subject, known.memory) for other in others):
            continue
        setting = {"timesteps": known.timesteps, "batch": known.batch, "memory": known.memory}
        found = replace(table(), steps=others).estimate(*known.subject, table().works[known.subject], **setting)
        kinds.append(found.kind)
        assert found.seconds == pytest.approx(known.seconds, rel=0.12 if found.kind == "estimated" else 0.03), known
    assert {*kinds} == {"interpolated", "extrapolated", "estimated"}


def test_a_network_that_is_left_out_is_found_again() -> None:
    """Within 10 %, by the other networks and what a layer takes."""
    for left_out, work in table().works.items():
        steps = tuple(known for known in table().steps if known.subject != left_out)
        works = {subject: own for subject, own in table().works.items() if subject != left_out}
        multiplication, neuron = tool.costs(steps, works, table().seconds_per_layer)
        fitted = {"seconds_per_multiplication": multiplication, "seconds_per_neuron": neuron}
        rest = replace(table(), works=works, steps=steps, **fitted)
        for known in table().steps:
            if known.subject == left_out and known.timesteps in (4, 6):
                setting = {"timesteps": known.timesteps, "batch": known.batch, "memory": known.memory}
                found = rest.estimate(*known.subject, work, **setting)
                assert (found.kind, found.seconds) == ("estimated", pytest.approx(known.seconds, rel=0.1)), known


def test_work_is_counted_from_the_network() -> None:
    with torch.device("meta"):
        network = models.build("resnet8", in_channels=3, image_size=8, num_classes=5)
    counted = Work.of(network, (3, 8, 8))
    assert counted.layers == 7
    assert counted.neurons == (3 * 16 * 8 * 8) + (2 * 32 * 4 * 4) + (2 * 64 * 2 * 2)
    first, blocks = 3 * 16 * 9 * 64, 2 * 16 * 16 * 9 * 64
    second = (16 * 32 * 9 + 32 * 32 * 9 + 16 * 32) * 16
    third = (32 * 64 * 9 + 64 * 64 * 9 + 32 * 64) * 4
    assert counted.multiplications == first + blocks + second + third + 64 * 5
