"""Accuracy against T of whole networks; when half precision will do."""

import copy
from dataclasses import replace

import pytest
import torch

from rheobase import recipes
from rheobase.analysis.fanout import fan_out
from rheobase.analysis.operations import ADDITION_PICOJOULE, MAC_PICOJOULE
from rheobase.convert import convert
from rheobase.data import load
from rheobase.deploy.network import Network
from rheobase.deploy.nodes import LIF, linear
from rheobase.tasks.sweep import half_will_do, measured
from tests.convert.networks import relu_net
from tests.deploy.networks import images

INFO = replace(load("digits").info, channels=2, mean=(0.0, 100.0), std=(100.0, 50.0))  # so pixels are at most 3.1


def chain(first: float, second: float, *, v_th: float = 1.0, bias: float = 0.0) -> Network:
    """Two neurons of that threshold in a row: pixels and `first`, then spikes and `second`, with 3 inputs each."""
    nodes = {
        "one": linear(torch.full((1, 3), -float(first)), None),
        "soma": LIF(1.0, torch.full((1,), v_th)),
        "two": linear(torch.full((1, 3), float(second)), torch.full((1,), bias)),
    }
    return Network(nodes, {"one": ["input"], "soma": ["one"], "two": ["soma"]})


def test_half_precision_must_hold_every_current() -> None:
    """65504 is the largest number of float16: pixels of 3.1 with three weights, spikes of 1 with three, and a bias."""
    assert half_will_do(chain(65504 / 9.31, 1), INFO)
    assert not half_will_do(chain(65504 / 9.29, 1), INFO)
    assert half_will_do(chain(1, 65000 / 3), INFO)
    assert not half_will_do(chain(1, 65000 / 3, bias=-600.0), INFO)


def test_half_precision_must_be_fine_against_thresholds() -> None:
    assert half_will_do(chain(1, 1, v_th=2.0**-10), INFO)
    assert not half_will_do(chain(1, 1, v_th=2.0**-11), INFO)


def test_operations_are_those_of_all_timesteps() -> None:
    model, x = relu_net(), images(6, 2, 8, seed=3)
    network = convert(model, "calibrated", 4, x)
    reach, info = fan_out(copy.deepcopy(network).to("meta"), (2, 8, 8)), replace(INFO, size=8)
    one, three = measured(
        network, [(x, torch.zeros(6, dtype=torch.long))], [1, 3], recipes.get("demo"), info, torch.device("cpu")
    )
    assert (one.multiplications, three.multiplications) == (reach.multiplications, 3 * reach.multiplications)
    for found in (one, three):
        picojoule = found.additions * ADDITION_PICOJOULE + found.multiplications * MAC_PICOJOULE
        assert found.joule == pytest.approx(picojoule * 1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    model, x = relu_net(), images(40, 2, 8, seed=3)
    network, labels = convert(model, "calibrated", 64, x).float(), model(x, 1)[0].argmax(1)
    x = x.float()
    found = {}
    for device in ("cpu", "cuda"):
        batches = [(x[i : i + 20].to(device), labels[i : i + 20].to(device)) for i in (0, 20)]
        where = torch.device(device)
        found[device] = measured(network, batches, [1, 16, 64], recipes.get("demo"), INFO, where)
    for here, there in zip(found["cpu"], found["cuda"], strict=True):
        assert there.firing_rate == pytest.approx(here.firing_rate, rel=2.0**-8)
        assert there.accuracy == pytest.approx(here.accuracy, abs=2 / 40)
    assert next(network.parameters()).dtype == torch.float32  # the caller's network stays as it was
