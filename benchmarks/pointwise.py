"""Would 1x1 convolutions of our own make ResNet-50 faster?

    python -m benchmarks.pointwise

Two passes over memory follow or precede them. The statistics of a soma read what a convolution has just written. The
gradient of a block's input is the sum of a convolution's input gradient and the shortcut's. A matrix product could do
either along the way. For every 1x1 convolution of stride 1, this compares what the network does now with such products,
ours in Triton with several tiles, and cuBLAS, which can add to what is there.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from benchmarks.output import result_path
from benchmarks.peers import LoopSoma
from benchmarks.pointwise_kernels import join_kernel, product_kernel
from benchmarks.soma import seconds
from benchmarks.tiles import difference
from rheobase import models
from rheobase.files import finite_or_null
from rheobase.kernels import triton as soma_kernels
from rheobase.nn import Conv2d
from rheobase.train.record import write_result


class Tile(NamedTuple):
    """How much of the product a program computes, and how."""

    rows: int
    channels: int
    depth: int
    warps: int
    stages: int


TILES = [
    Tile(128, 64, 64, 4, 3),
    Tile(128, 64, 64, 4, 4),
    Tile(256, 64, 64, 8, 3),
    Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 64, 4, 3),
    Tile(64, 128, 64, 4, 4),
    Tile(64, 256, 64, 8, 3),
    Tile(128, 256, 64, 8, 3),
]


class Shape(NamedTuple):
    """A 1x1 convolution of an input [T * N, inputs, side, side]."""

    inputs: int
    outputs: int
    side: int
    beside_shortcut: bool
    """Whether its input also goes to an identity shortcut."""


def shapes(network: str, image_size: int) -> Counter[Shape]:
    """Count the 1x1 convolutions of stride 1 in a network of bottleneck blocks."""
    found: Counter[Shape] = Counter()

    def note(conv: Conv2d, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found[Shape(conv.in_channels, conv.out_channels, output.shape[-1], conv in beside)] += 1

    with torch.device("meta"):
        net = models.build(network, in_channels=3, image_size=image_size, soma=LoopSoma)
        beside = {block.conv1 for block in net.body if isinstance(block.shortcut, torch.nn.Identity)}
        for module in net.modules():
            if isinstance(module, Conv2d) and module.kernel_size == (1, 1) and module.stride == (1, 1):
                module.register_forward_hook(note)
        net(torch.empty(1, 3, image_size, image_size), timesteps=1)
    return found


def product(x: Tensor, weight: Tensor, tile: Tile, added: Tensor | None = None) -> Tensor:
    """Return x @ weight + added."""
    out, _ = _launch(x, weight, tile, added, None)
    return out


def product_with_moments(x: Tensor, weight: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """Return x @ weight, and mean and variance of its columns."""
    programs, channels = triton.cdiv(len(x), tile.rows), weight.shape[1]
    partial = torch.empty(programs, 2, channels, device=x.device)
    out, partial = _launch(x, weight, tile, None, partial)
    moments = torch.empty(2, channels, device=x.device)
    join_kernel[(triton.cdiv(channels, 4),)](
        partial, moments, len(x), channels, programs, ROWS=tile.rows, CHANNELS=4, AT_ONCE=1024, num_warps=8
    )
    return out, moments


def _launch(
    x: Tensor, weight: Tensor, tile: Tile, added: Tensor | None, partial: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    rows, channels = len(x), weight.shape[1]
    out = torch.empty(rows, channels, dtype=x.dtype, device=x.device)
    product_kernel[(channels // tile.channels, triton.cdiv(rows, tile.rows))](
        x, weight, added, out, partial, rows, x.shape[1], channels, *weight.stride(),
        ROWS=tile.rows, CHANNELS=tile.channels, DEPTH=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out, partial


Way = tuple[str, Callable[[], Any]]


def forward(shape: Shape, steps: int, batch: int, device: str, dtype: torch.dtype) -> Iterator[Way]:
    """Yield the ways to get the output of a convolution and its moments, today's first."""
    images, weight = _data(shape, steps * batch, device, dtype)
    rows, matrix = _rows(images), weight[:, :, 0, 0].T
    spikes = (steps, batch, shape.outputs, shape.side, shape.side)

    def moments(out: Tensor) -> Tensor:
        return soma_kernels.statistics([out.view(*spikes[:2], *spikes[3:], shape.outputs).movedim(-1, 2)])[:2]

    def separately(out: Tensor) -> tuple[Tensor, Tensor]:
        return out, moments(out)

    yield "cuDNN, then statistics", lambda: separately(_rows(F.conv2d(images, weight)))
    yield "cuBLAS, then statistics", lambda: separately(rows @ matrix)
    for tile in _fitting(shape.outputs):
        yield f"one kernel {tuple(tile)}", lambda tile=tile: product_with_moments(rows, matrix, tile)


def backward(shape: Shape, steps: int, batch: int, device: str, dtype: torch.dtype) -> Iterator[Way]:
    """Yield the ways to add the input gradient of a convolution to that of a shortcut, today's first."""
    images, weight = _data(shape, steps * batch, device, dtype)
    grad = torch.randn(steps * batch, shape.outputs, shape.side, shape.side, device=device).to(dtype)
    grad = grad.contiguous(memory_format=torch.channels_last)
    shortcut = torch.randn_like(_rows(images))
    rows, matrix = _rows(grad), weight[:, :, 0, 0]
    kept = shortcut.clone()

    def today() -> Tensor:
        found, _, _ = torch.ops.aten.convolution_backward(
            grad, images, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False]
        )
        return _rows(found) + shortcut

    yield "cuDNN, then addition", today
    yield "cuBLAS, adding to the shortcut's", lambda: kept.addmm_(rows, matrix)
    for tile in _fitting(shape.inputs):
        yield f"one kernel {tuple(tile)}", lambda tile=tile: product(rows, matrix, tile, added=shortcut)


def _data(shape: Shape, images: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    spikes = (torch.rand(images, shape.inputs, shape.side, shape.side, device=device) < 0.2).to(dtype)
    weight = torch.randn(shape.outputs, shape.inputs, 1, 1, device=device).to(dtype) / shape.inputs**0.5
    return tuple(x.contiguous(memory_format=torch.channels_last) for x in (spikes, weight))


def _rows(images: Tensor) -> Tensor:
    """Return images [N, C, H, W] in the memory order of channels last as [N * H * W, C], without a copy."""
    return images.movedim(1, -1).reshape(-1, images.shape[1])


def _fitting(channels: int) -> list[Tile]:
    return [tile for tile in TILES if channels % tile.channels == 0]


def compared(ways: Iterator[Way], device: str) -> Iterator[dict[str, Any]]:
    """Yield for each way its time, and its difference from the first; or why it cannot run."""
    expected = None
    for name, call in ways:
        try:
            found = call()
            expected = found if expected is None else expected
            yield {"way": name, "difference": difference(found, expected), "seconds": seconds(call, device)}
        except (RuntimeError, triton.TritonError) as error:  # a tile may need more than the GPU has
            yield {"way": name, "failed": str(error)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time 1x1 convolutions that do a neighbour's work too.")
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--timesteps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--out", type=Path, help="JSON file; by default results/pointwise-<device>.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    torch.backends.cudnn.benchmark = True
    device, results, gained = torch.device("cuda"), [], Counter[str]()
    out = options.out or result_path("pointwise", device)
    setting = (options.timesteps, options.batch, "cuda", torch.bfloat16)
    found = shapes(options.network, options.image_size)
    for done, (shape, times) in enumerate(found.items(), 1):
        for name, ways in (("forward", forward), *([("backward", backward)] if shape.beside_shortcut else [])):
            rows = list(compared(ways(shape, *setting), "cuda"))
            best = min((row for row in rows if "seconds" in row), key=lambda row: row["seconds"])
            saved = 1e6 * times * (rows[0]["seconds"] - best["seconds"]) / (options.timesteps * options.batch)
            gained[name] += saved
            results.append({"pass": name, "shape": shape._asdict(), "times": times, "ways": rows})
            print(f"{name} {tuple(shape)} x {times}: {1e6 * rows[0]['seconds']:.1f} us, {best['way']} "
                  f"{1e6 * best['seconds']:.1f} us, difference {best['difference']:.1e}", flush=True)  # fmt: skip
        content = {"timesteps": options.timesteps, "batch": options.batch, "network": options.network}
        content |= {"saved_us_per_image_timestep": dict(gained), "results": finite_or_null(results)}
        write_result(out, content, to_come=len(found) - done, device=device)
    print(f"saved per image and timestep, us: {dict(gained)}")


if __name__ == "__main__":
    main()
