import pytest

from rheobase.deploy.agreement import Agreement
from rheobase.deploy.simulate import Operations
from rheobase.tasks.verify import Comparison, Verification

SAME = Agreement({"soma": 0.0}, {"soma": 0.2}, 0.0, 1.0)
OTHER_PREDICTIONS = Agreement({"soma": 0.0}, {"soma": 0.2}, 0.0, 0.98)


@pytest.mark.parametrize(
    ("agreement", "integer", "deployed", "different", "logits", "passed"),
    [
        (SAME, False, 0.9, 0, 0.0, True),
        (SAME, False, 0.9, 1, 0.0, False),
        (SAME, False, 0.9, 0, 1e-3, False),
        (SAME, False, 0.899, 0, 0.0, False),
        (SAME, False, 0.901, 0, 0.0, False),
        (OTHER_PREDICTIONS, False, 0.9, 0, 0.0, False),
        (OTHER_PREDICTIONS, True, 0.898, 0, 0.0, True),
        (SAME, True, 0.896, 0, 0.0, False),
        (SAME, True, 0.95, 0, 0.0, True),
    ],
)
def test_verdict(
    agreement: Agreement, integer: bool, deployed: float, different: int, logits: float, passed: bool
) -> None:
    """Of a network of 0.9 accuracy, and what the simulator found."""
    simulation = Comparison(1, different, logits, Operations())
    assert Verification(agreement, 0.0, 0.9, deployed, integer, simulation).passed is passed


def test_integers_that_lose_too_much_are_less_accurate() -> None:
    found = Verification(SAME, 0.0, 0.9, 0.89, True, None)
    assert found.verdict == "less accurate than the trained network"
    other_spikes = Verification(SAME, 0.0, 0.9, 0.9, True, Comparison(1, 3, 0.0, Operations()))
    assert other_spikes.verdict == "NOT the same network"
