from typing import Any

import pytest

from rheobase.deploy.agreement import Agreement
from rheobase.tasks.verify import Comparison, Verification

SAME = Agreement({"soma": 0.0}, {"soma": 0.2}, 0.0, 1.0)
OTHER_PREDICTIONS = Agreement({"soma": 0.0}, {"soma": 0.2}, 0.0, 0.98)


@pytest.mark.parametrize(
    ("agreement", "integer", "fewer", "different", "logits", "passed"),
    [
        (SAME, False, 0, 0, 0.0, True),
        (SAME, False, 0, 1, 0.0, False),
        (SAME, False, 0, 0, 1e-3, False),
        (SAME, False, 1, 0, 0.0, False),
        (SAME, False, -1, 0, 0.0, False),
        (OTHER_PREDICTIONS, False, 0, 0, 0.0, False),
        (OTHER_PREDICTIONS, True, 2, 0, 0.0, True),
        (SAME, True, 4, 0, 0.0, False),
        (SAME, True, -50, 0, 0.0, True),
    ],
)
def test_verdict(agreement: Agreement, integer: bool, fewer: int, different: int, logits: float, passed: bool) -> None:
    """Of a network that recognises 900 of 1000 images, and what the simulator found."""
    simulation = Comparison(1, different, logits)
    found = verification(
        agreement, bits=8 if integer else None, lost=max(fewer, 0), won=max(-fewer, 0), simulation=simulation
    )
    assert found.passed is passed
    assert found.deployed == pytest.approx(0.9 - fewer / 1000)


def verification(agreement: Agreement = SAME, **found: Any) -> Verification:
    known = {"logits": 0.0, "images": 1000, "right": 900, "lost": 0, "won": 0, "bits": 8}
    return Verification(agreement, **{**known, "operations": None, "simulation": None, **found})


def test_integers_that_lose_too_much_are_less_accurate() -> None:
    found = verification(lost=10)
    assert found.verdict == "less accurate than the trained network: 10 of 1000 test images fewer (10 lost, 0 won)"
    assert found.only_rounded
    other_spikes = verification(simulation=Comparison(1, 3, 0.0))
    assert other_spikes.verdict == "NOT the same network"
    assert not other_spikes.only_rounded


@pytest.mark.parametrize(
    ("lost", "won", "by_chance"), [(2, 0, True), (3, 0, True), (4, 0, False), (5, 1, True), (7, 1, False)]
)
def test_a_loss_of_few_images_fails_but_is_said_to_be_little_evidence(lost: int, won: int, by_chance: bool) -> None:
    """1/4, 1/8, 1/16, 7/64, 9/256: how often a fair coin favours one side so much."""
    found = verification(images=359, right=355, lost=lost, won=won)
    assert not found.passed
    assert f"{lost - won} of 359 test images fewer ({lost} lost, {won} won)" in found.verdict
    assert ("which may be chance" in found.verdict) is by_chance


def test_one_of_359_images_may_be_lost() -> None:
    assert verification(images=359, right=355, lost=1).passed
