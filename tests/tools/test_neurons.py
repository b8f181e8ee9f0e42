"""The comparison of neurons: what chance explains, and what is drawn."""

import re
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree

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


def test_every_run_is_drawn_at_its_accuracy_and_every_variant_with_its_energy() -> None:
    found = neurons.groups()
    drawing = neurons.drawing(found)
    root = ElementTree.fromstring(drawing)
    places = [float(dot.attrib["cx"]) for dot in root if dot.tag.endswith("circle")]
    accuracies = [run.accuracy_last for group in found.values() for run in group.runs]
    assert len(places) == len(accuracies) == 2 * len(neurons.VARIANTS)
    (low, high), (first, last) = (min(accuracies), max(accuracies)), (min(places), max(places))
    for place, accuracy in zip(places, accuracies, strict=True):
        assert place == pytest.approx(first + (accuracy - low) / (high - low) * (last - first), abs=0.11)
    band, *bars = (rect for rect in root if "bar" in rect.attrib.get("class", "") and rect.tag.endswith("rect"))
    base = fmean(places[:2])
    left, wide = float(band.attrib["x"]), float(band.attrib["width"])
    assert base == pytest.approx(left + wide / 2, abs=0.11)
    assert wide * (high - low) / (last - first) == pytest.approx(2 * neurons.noise(found), rel=0.01)
    energies = [group.joule.mean for group in found.values() if group.joule]
    for bar, joule in zip(bars, energies, strict=True):
        assert float(bar.attrib["width"]) == pytest.approx(joule / max(energies) * neurons.LONGEST, abs=0.06)
    words = [text.text or "" for text in root.iter() if text.tag.endswith("text")]
    assert words[0] == root[0].text == "Neurons and blocks on CIFAR-10: accuracy and energy"
    assert {words.partition(":")[0] for words in neurons.VARIANTS.values()} <= {*words}
    assert re.search(r"prefers-color-scheme: dark", drawing)


def test_without_runs_there_is_nothing_to_compare(tmp_path: Path) -> None:
    assert neurons.groups(tmp_path / "neurons") == {}
