"""Independent software that runs an exported NIR file: each takes a file, images and T, and yields spikes and logits.

nirtorch      its own reader of layers, its wiring and sums; the LIF equation of NIR is added here
norse         its LIFBoxCell, wired by nirtorch
norse_import  its own importer, which wires by an older executor of nirtorch
snntorch      its own importer (Leaky neurons), float32
spikingjelly  its own importer (LIFNode)

python -m deploy.executors      (in tests/) prints which of them run which network, in which form
"""

import contextlib
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from rheobase.deploy.agreement import Record

DT = 1e-4
Executor = Callable[[Path, Tensor, int], Record]


class EulerLIF(nn.Module):
    """NIR's LIF, stepped by forward Euler."""

    def __init__(self, node) -> None:
        super().__init__()
        self.gain, self.r, self.v_th = (torch.from_numpy(p) for p in (DT / node.tau, node.r, node.v_threshold))

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        v = torch.zeros_like(x) if state is None else state
        v = v + self.gain * (self.r * x - v)
        s = (v > self.v_th).to(x.dtype)
        return s, v * (1 - s)


def nirtorch(path: Path, x: Tensor, timesteps: int) -> Record:
    import nir
    import nirtorch

    return _steps(nirtorch.nir_to_torch(nir.read(path), {nir.LIF: EulerLIF}, dtype=torch.float64), x, timesteps)


def norse(path: Path, x: Tensor, timesteps: int) -> Record:
    import nir
    import nirtorch
    from norse.torch import LIFBoxCell, LIFBoxParameters

    def lif(node) -> nn.Module:
        tau, v_th, v_leak = (torch.from_numpy(p) for p in (node.tau, node.v_threshold, node.v_leak))
        return LIFBoxCell(LIFBoxParameters(tau_mem_inv=1 / tau, v_th=v_th, v_leak=v_leak), dt=DT)

    return _steps(nirtorch.nir_to_torch(nir.read(path), {nir.LIF: lif}, dtype=torch.float64), x, timesteps)


def norse_import(path: Path, x: Tensor, timesteps: int) -> Record:
    import nir
    from norse.torch import from_nir

    return _steps(from_nir(nir.read(path), dt=DT).double(), x, timesteps)


def snntorch(path: Path, x: Tensor, timesteps: int) -> Record:
    import nir
    from snntorch.import_nir import import_from_nir

    return _steps(import_from_nir(nir.read(path)).float(), x.float(), timesteps)


def spikingjelly(path: Path, x: Tensor, timesteps: int) -> Record:
    from spikingjelly.activation_based.nir_exchange import import_from_nir

    return _steps(import_from_nir(path, dt=DT, dtype=torch.float64), x, timesteps)


EXECUTORS: dict[str, Executor] = {f.__name__: f for f in (nirtorch, norse, norse_import, snntorch, spikingjelly)}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Others' warnings, prints and log lines are not ours to fail on."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def _steps(network: nn.Module, x: Tensor, timesteps: int) -> Record:
    spikes: dict[str, list[Tensor]] = {}
    for name, module in network.named_children():
        if "soma" in name:
            keep = spikes.setdefault(name, [])
            module.register_forward_hook(lambda _, __, out, keep=keep: keep.append(_first(out).flatten(1) > 0))
    state, logits = None, []
    with torch.no_grad():
        for _ in range(timesteps):
            y, state = network(x, state)
            logits.append(_first(y).flatten(1))
    return Record({name: torch.stack(s) for name, s in spikes.items()}, torch.stack(logits))


def _first(value: Tensor | tuple[Tensor, ...]) -> Tensor:
    return value[0] if isinstance(value, tuple) else value


def _table() -> None:
    from deploy.networks import SMALL, images, trained_like

    from rheobase.deploy.agreement import agreement, record
    from rheobase.deploy.folding import fold
    from rheobase.deploy.formats import nir as rheobase_nir

    with tempfile.TemporaryDirectory() as folder:
        for name, options, size, timesteps in SMALL:
            model = trained_like(name, size, **options)
            x = images(2, options["in_channels"], size)
            expected = record(model, x, timesteps)
            for form in rheobase_nir.FORMS:
                path = Path(folder) / "net.nir"
                rheobase_nir.write(fold(model), path, (options["in_channels"], size, size), form)
                for executor, run in EXECUTORS.items():
                    try:
                        with quiet():
                            result = agreement(expected, run(path, x, timesteps))
                        different = sum(
                            v * s.numel() for v, s in zip(result.layers.values(), expected.spikes.values(), strict=True)
                        )
                        words = f"{different:.0f} spikes differ, logits by {result.logits:.1e}"
                    except Exception as error:
                        words = f"{type(error).__name__}: {error}".splitlines()[0][:90]
                    sys.stdout.write(f"{name:15} {form:10} {executor:13} {words}\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    _table()
