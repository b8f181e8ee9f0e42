"""The comparison of neurons: what chance explains."""

from dataclasses import replace
from math import sqrt

import pytest

from rheobase.tasks.compare import Spread
from tools import neurons


def test_noise_is_the_pooled_scatter_of_all_variants() -> None:
    found = {
        name: replace(group, accuracy_last=Spread.of([0.5, 0.5 + 0.01 * sqrt(2)]))
        for name, group in neurons.groups().items()
    }
    assert neurons.noise(found) == pytest.approx(2.262 * 0.01)  # each deviation is 0.01, and so is that of a difference


def test_the_table_says_which_differences_are_within_noise() -> None:
    chance = 100 * neurons.noise(neurons.groups())
    base, *others = neurons.rows()
    assert len(others) == len(neurons.VARIANTS) - 1
    assert base[2] == ""
    for _, accuracy, difference, *_ in others:
        apart = float(accuracy.split()[0]) - float(base[1].split()[0])
        assert float(difference.split(",")[0]) == pytest.approx(apart, abs=0.011)
        assert difference.endswith("within noise") == (abs(apart) < chance)
    assert f"{chance:.2f} points" in neurons.noise_sentence()
