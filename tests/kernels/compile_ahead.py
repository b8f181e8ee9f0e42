"""Compile the kernels of a soma ahead, for sm_90 and without a GPU: python tests/kernels/compile_ahead.py

Run as a process of its own, as compile_kernels.py. Triton gets a driver that loads nothing; what it was asked to make
ready is printed, a line for each kernel.
"""

from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from rheobase.kernels import ahead
from rheobase.kernels.fused import Constants, Received

ready: list[str] = []  # by threads, whose lines on a screen might mix


def launcher(source: Any, metadata: Any) -> None:
    ready.append(f"launcher {metadata.name}")


def load_binary(name: str, *_: Any) -> tuple[int, ...]:
    ready.append(f"loaded {name}")
    return 0, 0, 0, 0, 1024


def main() -> None:
    utils = SimpleNamespace(load_binary=load_binary, get_device_properties=lambda _: {"max_shared_mem": 2**20})
    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: 0,
            get_current_stream=lambda _: 0,
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            launcher_cls=launcher,
            utils=utils,
        )
    )
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = lambda _: None
    shape, stride = torch.Size((4, 2, 32, 8, 8)), (2048 * 2, 2048, 1, 256, 32)
    x = shape, stride, torch.bfloat16
    static = shape, (0, *stride[1:]), torch.bfloat16
    paper = Constants(0.25, 0.5, 1.0, 1e-5)
    calls = [
        Received((x, x), paper, learns_decay=False, normalises=False, members=None, packs=True, reads_bits=True),
        Received((static,), paper, learns_decay=True, normalises=True, members=3, packs=False, reads_bits=False),
    ]
    ahead.compile_training(
        [calls[0]._replace(constants=paper._replace(surrogate="unknown"))]
    )  # only its backward fails
    ahead.compile_training([*calls, *calls])
    print("\n".join(ready))  # noqa: T201


if __name__ == "__main__":
    main()
