"""1x1 convolutions on trial, in Triton's interpreter: every way computes the same."""

import os
import subprocess
import sys

import pytest
import torch

COMPILE = """
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from benchmarks import pointwise, pointwise_kernels as kernels

pointers = ["x", "weight", "added", "out", "partial"]
numbers = ["rows", "depth", "channels", "stride_depth", "stride_channel"]
for tile in pointwise.TILES:
    for last in ("added", "partial"):  # as the gradient and as the output of a convolution
        signature = dict.fromkeys(pointers, "*bf16") | dict.fromkeys(numbers, "i32") | {"partial": "*fp32"}
        fixed = {"ROWS": tile.rows, "CHANNELS": tile.channels, "DEPTH": tile.depth}
        fixed |= {"partial" if last == "added" else "added": None}
        fixed |= {"stride_channel" if last == "added" else "stride_depth": 1}
        signature |= dict.fromkeys(fixed, "constexpr")
        aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(signature) if n not in fixed and n != "rows"}
        source = ASTSource(kernels.product_kernel, signature, fixed, aligned)
        options = {"num_warps": tile.warps, "num_stages": tile.stages}
        found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        print(tile, last, found.metadata.shared, "wgmma" in found.asm["ptx"])
"""


@pytest.mark.parametrize("side", [8, 5])  # 384 rows, which all tiles divide, and 150, which none does
def test_every_way_gives_the_same_results(triton_device: str, monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    from benchmarks import pointwise

    monkeypatch.setattr(pointwise, "seconds", lambda call, device: 2.0)
    monkeypatch.setattr(pointwise, "TILES", [pointwise.Tile(32, 64, 32, 4, 3), pointwise.Tile(128, 32, 16, 4, 3)])
    for way, expected in ((pointwise.forward, 2 + 2), (pointwise.backward, 2 + 1)):
        shape = pointwise.Shape(inputs=32, outputs=64, side=side, beside_shortcut=True)
        found = list(pointwise.compared(way(shape, 2, 3, triton_device, torch.float32), triton_device))
        assert len(found) == expected
        assert all(row["difference"] < 1e-5 and row["seconds"] == 2.0 for row in found), found


def test_a_way_that_cannot_run_is_reported(triton_device: str) -> None:
    from benchmarks import pointwise

    def fail() -> None:
        raise RuntimeError("out of shared memory")

    (found,) = pointwise.compared(iter([("one kernel", fail)]), triton_device)
    assert found == {"way": "one kernel", "failed": "out of shared memory"}


def test_moments_are_exact_far_from_zero(triton_device: str) -> None:
    from benchmarks import pointwise

    x = torch.randn(700, 32, device=triton_device) + 1000  # the mean is 1000 deviations away
    identity = torch.eye(32, device=triton_device)
    out, (mean, var) = pointwise.product_with_moments(x, identity, pointwise.Tile(64, 32, 32, 4, 3))
    exact = out.double()
    torch.testing.assert_close(mean.double(), exact.mean(0), rtol=5e-7, atol=0)  # a few roundings
    torch.testing.assert_close(var.double(), exact.var(0, correction=0), rtol=1e-4, atol=0)


def test_the_convolutions_of_resnet50_are_found(triton_device: str) -> None:
    from benchmarks import pointwise

    found = pointwise.shapes("resnet50", 224)
    assert sum(found.values()) == 32  # two in each of the 16 blocks
    assert sum(times for shape, times in found.items() if shape.beside_shortcut) == 12  # all blocks but four
    assert found[pointwise.Shape(512, 128, 28, True)] == 3


@pytest.mark.slow
def test_compiles_ahead_of_time(triton_device: str, tmp_path: pytest.TempPathFactory) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    from benchmarks import pointwise

    assert run.stdout.count("True") == 2 * len(pointwise.TILES)  # all use the tensor cores of Hopper
