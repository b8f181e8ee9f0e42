"""Numbers with units."""

import pytest

from rheobase.report.layout import joule


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.5e-3, "2.5 mJ"),
        (1e-3, "1 mJ"),
        (9.99e-4, "999 uJ"),
        (4e-6, "4 uJ"),
        (5e-9, "5 nJ"),
        (3e-10, "300 pJ"),
        (9.996e-7, "1 uJ"),
        (9.994e-7, "999 nJ"),
        (2.5, "2.5 J"),
        (0.0, "0 pJ"),
    ],
)
def test_energy(value: float, text: str) -> None:
    assert joule(value) == text
