"""The exported file in other people's software: the same spikes as the trained network, residual sums included."""

from importlib import import_module

import pytest

from rheobase.deploy.agreement import agreement, record
from rheobase.deploy.folding import fold
from rheobase.deploy.formats import nir as rheobase_nir
from tests.deploy.networks import images, tiny, trained_like

from . import executors

pytest.importorskip("nir", reason="the extra rheobase[nir] is not installed")


def run(executor, path, x, timesteps):
    package = executor.removesuffix("_import")
    for needed in ("nirtorch", package):
        try:
            with executors.quiet():
                import_module(needed)
        except ImportError:
            pytest.skip(f"{needed} is not installed")
    with executors.quiet():
        return executors.EXECUTORS[executor](path, x, timesteps)


@pytest.mark.parametrize("global_pool", [False, True])
@pytest.mark.parametrize("executor", ["nirtorch", "norse", "snntorch", "spikingjelly"])
def test_residual_network(tmp_path, executor, global_pool):
    model = tiny(global_pool=global_pool)
    rheobase_nir.write(fold(model), tmp_path / "net.nir", (2, 7, 7), "portable")
    x = images(3, 2, 7)
    result = agreement(record(model, x, 4), run(executor, tmp_path / "net.nir", x, 4))
    assert set(result.layers.values()) == {0.0}
    assert result.logits < (1e-5 if executor == "snntorch" else 1e-9)  # snnTorch computes in float32


@pytest.mark.parametrize("executor", sorted(executors.EXECUTORS))
def test_chain(tmp_path, executor):
    model = trained_like("plain20", 6, num_classes=5, image_size=6, channels=4)
    rheobase_nir.write(fold(model), tmp_path / "net.nir", (3, 6, 6), "portable")
    x = images(2, 3, 6)
    result = agreement(record(model, x, 4), run(executor, tmp_path / "net.nir", x, 4))
    assert set(result.layers.values()) == {0.0}
    assert result.logits < (1e-5 if executor == "snntorch" else 1e-9)
