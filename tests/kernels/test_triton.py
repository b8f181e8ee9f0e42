"""The Triton kernels beyond single calls: ahead-of-time compilation here, whole networks on a GPU."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rheobase import kernels, models
from rheobase.nn import ReferenceSoma, Soma


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["75", "80", "90"])
def test_compiles_ahead_of_time(architecture: str, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton: install rheobase[kernels]")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("compile_kernels.py")
    run = subprocess.run([sys.executable, script, architecture], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = run.stdout.removeprefix("T=").split("\nT=")
    *variants, last = found[:-8]
    assert len(variants) == 16 + 2 + 4  # T in 1, 4, 6, 40, branches, bfloat16 and float32; float16; other neurons
    assert all("backward_kernel" in variant for variant in variants)
    assert "_kernel" not in last  # another value of a learnt decay needs no other kernels
    assert all(bare.count("integrate_kernel") == 2 for bare in found[-8:-4])
    assert all(qcfs.count(kernel) == 1 for qcfs in found[-4:] for kernel in ("forward_kernel", "backward_kernel"))
    assert all(qcfs.count("divides exactly") == 2 for qcfs in found[-4:])


NEURONS: list[dict[str, Any]] = [
    {"surrogate": "triangle", "reset": "soft", "learn_decay": "channel"},
    {"surrogate": "sigmoid", "reset_gradient": False, "learn_decay": "layer"},
    {"surrogate": "atan", "reset": "soft", "reset_gradient": False},
]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("memory", ["speed", "packed", "recompute"])
@pytest.mark.parametrize(
    ("name", "neuron"),
    [
        *((name, {}) for name in ("resnet8", "resnet17", "resnet19", "resnet50")),
        *(("resnet19", n) for n in NEURONS),
    ],
    ids=str,
)
def test_whole_networks_equal_the_law(name: str, neuron: dict[str, Any], memory: str) -> None:
    results, gpu = [], torch.device("cuda", torch.cuda.device_count() - 1)  # not the current one, where there are more
    for options in ({"soma": ReferenceSoma}, {"memory": memory}):
        torch.manual_seed(4)
        network = models.build(name, **options, **neuron).to(gpu, torch.float64).to(memory_format=torch.channels_last)
        images = torch.randn(3, network.stem.in_channels, 32, 32, dtype=torch.float64).to(gpu)
        logits = network(images, timesteps=5)
        (logits * torch.randn_like(logits)).sum().backward()
        results.append({"logits": logits} | {n: p.grad for n, p in network.named_parameters()})
    law, own = results
    for key, value in law.items():
        torch.testing.assert_close(own[key], value, rtol=1e-9, atol=1e-9 * value.abs().max().item(), msg=key)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_tensors_on_the_cpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="needs Triton: install rheobase[kernels]")
    monkeypatch.setattr(kernels, "interpreted", lambda: False)
    with pytest.raises(ValueError, match=r"backend 'triton' needs a GPU \(or TRITON_INTERPRET=1\), got tensors on cpu"):
        kernels.fire(
            [torch.randn(4, 3, 5)], torch.ones(1, 5), torch.zeros(1, 5),
            decay=0.25, v_th=0.5, width=1.0, eps=1e-5, backend="triton",
        )  # fmt: skip


class Recorded:
    """Stands in for a kernel: records what a launch of it specialises on, and launches it."""

    def __init__(self, kernel: Any, launches: list[Any]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: Any) -> Any:
        def launch(*arguments: Any, **constants: Any) -> None:
            kinds = [x.dtype if isinstance(x, torch.Tensor) else x for x in arguments]
            self.launches.append((self.kernel.__name__, kinds, constants))
            self.kernel[grid](*arguments, **constants)

        return launch


@pytest.mark.parametrize(
    ("neuron", "same"),
    [({"learn_decay": "layer"}, True), ({"learn_decay": "channel", "reset": "soft"}, True), ({}, False)],
    ids=["a decay per layer", "a decay per channel", "fixed decays"],
)
def test_a_decay_that_learns_needs_no_other_kernels(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, neuron: dict[str, Any], same: bool
) -> None:
    """Other values of a learnt decay launch the same kernels; other values of a fixed one do not."""
    from rheobase.kernels import triton_kernels, triton_statistics

    launches: list[Any] = []
    for module in (triton_kernels, triton_statistics):
        for name, kernel in list(vars(module).items()):
            if name.endswith("_kernel"):
                monkeypatch.setattr(module, name, Recorded(kernel, launches))
    monkeypatch.setattr(kernels, "fire", partial(kernels.fire, backend="triton"))
    found = []
    for decay in (0.3, 0.6):
        soma = Soma(5, decay=decay, **neuron).to(triton_device)
        soma(torch.randn(4, 3, 5, 2, 2, device=triton_device)).sum().backward()
        found.append(launches[:])
        launches.clear()
    assert {"forward_kernel", "backward_kernel"} <= {name for name, _, _ in found[0]}
    assert (found[0] == found[1]) is same


def test_three_branches_are_refused_by_name(triton_device: str) -> None:
    xs = [torch.randn(4, 3, 5, device=triton_device) for _ in range(3)]
    vectors = torch.ones(3, 5, device=triton_device), torch.zeros(3, 5, device=triton_device)
    with pytest.raises(ValueError, match="backend 'triton' takes one or two branches, got 3; use 'auto'"):
        kernels.fire(xs, *vectors, decay=0.25, v_th=0.5, width=1.0, eps=1e-5, backend="triton")
