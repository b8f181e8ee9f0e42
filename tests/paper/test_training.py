"""How the networks of the paper's figures are trained."""

import pytest
import torch

from rheobase.data import load
from rheobase.paper.training import recipe_for


@pytest.mark.parametrize(("capability", "precision"), [((7, 5), "fp32"), ((8, 0), "bf16")])
def test_figures_have_no_scaled_gradients(
    capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU without bf16, fp16 would need them, and Fig. 2 is about gradients."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert recipe_for(load("digits"), torch.device("cuda")).precision == precision
