"""What an optimiser keeps goes on elsewhere: its memory and settings, not the way in which its device computes."""

from typing import Any

import torch
from torch import nn

from rheobase.train import optimizer_state


def adam(network: nn.Module, **ways: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(network.parameters(), lr=0.1, betas=(0.7, 0.9), **ways)


def stepped() -> tuple[nn.Linear, torch.optim.AdamW]:
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    own = adam(network)
    network(torch.randn(5, 3)).sum().backward()
    own.step()
    return network, own


def test_its_memory_and_settings_come_back() -> None:
    network, own = stepped()
    saved = dict(optimizer_state.kept(own, network, "adam"))
    other = torch.optim.AdamW(network.parameters(), lr=0.2, betas=(0.1, 0.2))
    optimizer_state.restore(other, network, saved)
    assert other.param_groups[0]["betas"] == (0.7, 0.9)
    assert other.param_groups[0]["lr"] == 0.2  # which follows from the recipe
    for p in network.parameters():
        assert own.state[p].keys() == other.state[p].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(value, other.state[p][key]) for key, value in own.state[p].items())


def test_a_graph_can_hold_what_began_without_a_gpu() -> None:
    network, own = stepped()
    saved = dict(optimizer_state.kept(own, network, "adam"))
    assert not [name for name in saved if "capturable" in name]
    older = saved | {"group0.capturable": False, "group0.fused": False}
    elsewhere = adam(network, capturable=True)  # as on a GPU
    optimizer_state.restore(elsewhere, network, older)
    group = elsewhere.param_groups[0]
    assert (group["capturable"], group["fused"]) == (True, None)
