"""The drawing of a network in its report."""

import torch

from rheobase.deploy import fold
from rheobase.models.blocks import MSBlock, PooledHead, SEWBlock
from rheobase.report import svg
from rheobase.tasks.wiring import wiring
from tests.deploy.networks import styled


def routes(block: type, head: type = PooledHead) -> dict[str, list[tuple[str, str]]]:
    graph = wiring(fold(styled(block, head)).float(), torch.randn(1, 2, 8, 8), 2)
    assert svg.network(graph, {}).count("edge") == sum(len(node["routes"]) for node in graph)
    return {node["name"]: [(r["source"], r["kind"]) for r in node["routes"]] for node in graph}


def test_all_sources_of_added_spikes_are_drawn() -> None:
    found = routes(SEWBlock)
    assert found["body_1_soma1"] == [("body_0_soma2", "conv 3x3"), ("soma", "conv 3x3")]
    assert found["body_2_shortcut_1"][0] == ("body_1_soma2", "conv 1x1 /2")
    assert found["head_soma"] == [("body_2_soma2", "pool, fc"), ("body_2_shortcut_1", "pool, fc")]


def test_all_currents_of_a_stream_are_drawn() -> None:
    found = routes(MSBlock)
    assert found["body_0_neurons"] == [("input", "conv 3x3")]
    assert found["body_1_neurons"] == [("body_0_soma", "conv 3x3"), ("input", "conv 3x3")]
