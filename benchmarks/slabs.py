"""Would the fused soma be faster slab by slab, each a part of the channels that stays in the GPU's cache?

    python -m benchmarks.slabs

Both passes of a direction read the same values: `statistics` and `forward` the inputs, `backward_sums` and
`backward_inputs` the inputs and the gradient. On a whole tensor, the second pass reads them from memory again. On a
slab that fits into the cache, it need not: with one branch in bfloat16, 10 bytes per value move instead of 16.

The kernels are those in use, on views of the tensors. Results are compared with those of the whole tensor.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks.contenders import Setting
from benchmarks.output import result_path
from benchmarks.soma import EPS, V_TH, WIDTH, Shape, received, seconds, shapes
from benchmarks.tiles import NETWORKS, difference
from rheobase.files import finite_or_null
from rheobase.kernels import triton as kernels
from rheobase.kernels.fused import Constants, Neurons
from rheobase.train.record import write_result

DECAY = 0.5
WIDTHS = (128, 64, 32, 16)  # channels of a slab
LARGEST = 6  # shapes per network


@dataclass(frozen=True)
class SlabLayout(kernels._Layout):
    """Some channels of a tensor in channels_last: rows lie as far apart as those of the whole tensor."""

    outputs: ClassVar[list[Tensor]] = []

    @classmethod
    def of(cls, x: Tensor) -> "SlabLayout":
        """Return the layout of a view of some channels."""
        return cls(True, x.shape[1] * prod(x.shape[3:]), x.shape[2], x.stride(-1), 1, 1)

    def fit(self, x: Tensor) -> Tensor:
        """Return x itself, which lies like this already."""
        return x

    def empty(self, x: Tensor) -> Tensor:
        """Return the next slab that waits for a result."""
        return self.outputs.pop(0)


@contextmanager
def writing_to(outputs: list[Tensor]) -> Iterator[None]:
    """Let the kernels see slabs, and write to these."""
    usual = kernels._Layout
    kernels._Layout, SlabLayout.outputs = SlabLayout, outputs  # type: ignore[misc]
    try:
        yield
    finally:
        kernels._Layout = usual  # type: ignore[misc]


class Passes:
    """Both directions of a soma on random data, in slabs of `width` channels. Results are written to whole tensors."""

    def __init__(self, xs: list[Tensor], grad: Tensor, width: int) -> None:
        channels = xs[0].shape[2]
        self.parts = [slice(start, start + width) for start in range(0, channels, width)]
        self.xs, self.grad = [[x[:, :, part] for x in xs] for part in self.parts], grad
        self.spikes, self.gradients = torch.empty_like(grad), [torch.empty_like(x) for x in xs]
        self.count = grad.numel() / channels
        self.ones = [torch.ones(len(xs), own[0].shape[2], device=grad.device) for own in self.xs]
        self.zeros = [torch.zeros_like(ones) for ones in self.ones]
        self.moments = [kernels.statistics([x[:, :, part].clone() for x in xs])[:-1].chunk(2) for part in self.parts]

    def _neurons(self, number: int, moments: Any) -> Neurons:
        constants = Constants(DECAY, V_TH, WIDTH, EPS)
        return Neurons(self.ones[number], self.zeros[number], *moments, None, constants)

    def forward(self) -> list[Tensor]:
        """Compute the spikes."""
        for number, (part, xs) in enumerate(zip(self.parts, self.xs, strict=True)):
            with writing_to([self.spikes[:, :, part]]):
                moments = kernels.statistics(xs)[:-1].chunk(2)
                kernels.forward(xs, self._neurons(number, moments), False)
        return [self.spikes]

    def backward(self) -> list[Tensor]:
        """Compute the gradients of all branches."""
        for number, (part, xs) in enumerate(zip(self.parts, self.xs, strict=True)):
            grad, neurons = self.grad[:, :, part], self._neurons(number, self.moments[number])
            with writing_to([own[:, :, part] for own in self.gradients]):
                sums, du = kernels.backward_sums(grad, xs, neurons)
                kernels.backward_inputs(grad, xs, neurons, du, sums, self.count, ())
        return self.gradients


def largest(setting: Setting) -> list[tuple[int, Shape]]:
    """Return the shapes that move most of the bytes, and how many somas have each."""
    found = {shape: n for shape, n in shapes(setting).items() if not shape.static and shape.sequence[2] > min(WIDTHS)}
    order = sorted(found, key=lambda shape: found[shape] * shape.branches * prod(shape.sequence), reverse=True)
    return [(found[shape], shape) for shape in order[:LARGEST]]


def tried(
    shape: Shape, setting: Setting, time: Callable[[Callable[[], Any]], float]
) -> Iterator[dict[str, float | int | str]]:
    """Yield both directions on the whole tensor, then slab by slab: seconds, and difference from the whole tensor."""
    xs, grad = received(shape, setting)
    channels = shape.sequence[2]
    expected: dict[str, list[Tensor]] = {}
    for width in (channels, *(width for width in WIDTHS if width < channels)):
        passes = Passes(xs, grad, width)
        for name, call, read in (
            ("forward", passes.forward, len(xs)),
            ("backward", passes.backward, len(xs) + 1),
        ):
            results = [result.clone() for result in call()]
            expected.setdefault(name, results)
            yield {
                "direction": name,
                "channels": width,
                "read_again_bytes": read * grad.numel() * grad.element_size() * width // channels,
                "seconds": time(call),
                "difference": difference(results, expected[name]),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the fused soma slab by slab.")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--timesteps", type=int, default=4)
    parser.add_argument("--out", type=Path, help="JSON file; by default results/slabs-<device>.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("slabs need a GPU")
    rows, device = [], torch.device("cuda")
    for done, network in enumerate(options.networks, 1):
        batch, size = NETWORKS[network]
        setting = Setting(options.timesteps, batch, "cuda", network, size, half=True)
        for somas, shape in largest(setting):
            for found in tried(shape, setting, lambda call: seconds(call, "cuda")):
                us = 1e6 * somas * float(found.pop("seconds")) / (options.timesteps * batch)
                row = {"network": network, "shape": str(shape), "somas": somas, **found, "us_per_image_timestep": us}
                print(f"{network}, {somas} x {shape}: {row['direction']}, {row['channels']} channels: {us:.2f} us")
                rows.append(row)
        content = {"timesteps": options.timesteps, "results": finite_or_null(rows)}
        out = options.out or result_path("slabs", device)
        write_result(out, content, to_come=len(options.networks) - done, device=device)


if __name__ == "__main__":
    main()
