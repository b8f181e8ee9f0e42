"""Compile the Triton kernels ahead of time, without a GPU: python tests/kernels/compile_kernels.py 80 90

This runs in a process of its own, because Triton reads TRITON_INTERPRET when a kernel is defined. The launchers are
called with tensors on the CPU. Each launch is replaced by a compilation for the given architectures, so the variants
are those of real calls.
"""

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from rheobase.kernels import triton as launchers
from rheobase.kernels import triton_kernels, triton_qcfs, triton_statistics
from rheobase.kernels.bare import BareNeurons
from rheobase.kernels.fused import Constants, Neurons

POINTERS = {torch.float64: "*fp64", torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
POINTERS[torch.uint8] = "*u8"
PAPER = Constants(0.25, 0.5, 1.0, 1e-5)
VARIANTS: list[tuple[int, int, torch.dtype, Constants, Any]] = [
    (steps, branches, dtype, PAPER, None)
    for steps in (1, 4, 6, 40)
    for branches in (1, 2)
    for dtype in (torch.bfloat16, torch.float32)
]
VARIANTS += [(4, branches, torch.float16, PAPER, None) for branches in (1, 2)]  # for GPUs without bfloat16
VARIANTS += [  # other neurons; the last two differ only in the learnt decay
    (4, 2, torch.bfloat16, PAPER._replace(surrogate="triangle", reset="soft"), None),
    (4, 1, torch.bfloat16, PAPER._replace(surrogate="sigmoid", reset_gradient=False), None),
    (40, 1, torch.bfloat16, PAPER._replace(surrogate="atan", reset="soft", reset_gradient=False), 0.5),
    (4, 2, torch.bfloat16, PAPER, 0.5),
    (4, 2, torch.bfloat16, PAPER, 0.75),
]
BARE: list[tuple[int, torch.dtype, bool, int | None]] = [
    (4, torch.bfloat16, False, None),
    (4, torch.float16, True, None),
    (40, torch.float32, True, None),
    (4, torch.float64, True, 6),
]
QCFS: list[tuple[torch.dtype, int]] = [(torch.bfloat16, 4), (torch.float16, 4), (torch.float32, 8), (torch.float64, 1)]


class Compile:
    """Stands in for a kernel: kernel[grid](...) compiles it."""

    def __init__(self, kernel: JITFunction, architectures: list[int]) -> None:
        self.kernel, self.architectures = kernel, architectures
        self.known: set[str] = set()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.compile

    def compile(self, *args: Any, num_warps: int = 4, **constants: Any) -> None:
        signature, constexprs, attributes = {}, dict(constants), {}
        for i, (name, value) in enumerate(zip(self.kernel.arg_names, args, strict=False)):
            if value is None or (isinstance(value, int) and value == 1):  # what a launch specialises on
                signature[name], constexprs[name] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[name] = POINTERS[value.dtype]
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32" if value < 2**31 else "i64"
            if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
                attributes[(i,)] = [["tt.divisibility", 16]]
        signature |= dict.fromkeys(constants, "constexpr")
        kind = str((signature, constexprs, attributes, num_warps))
        if kind in self.known:
            return
        self.known.add(kind)
        source = ASTSource(self.kernel, signature, constexprs, attributes)
        for architecture in self.architectures:
            compiled = triton.compile(
                source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": num_warps}
            )
            exact = "div.rn" in compiled.asm["ptx"]  # every other division may be wrong in the last bits
            told = f"{len(compiled.asm['cubin'])} bytes{', divides exactly' if exact else ''}"
            print(f"  {self.kernel.__name__} sm_{architecture}: {told}", flush=True)  # noqa: T201


def main(architectures: list[int]) -> None:
    for module in (triton_kernels, triton_qcfs, triton_statistics):
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction) and name.endswith("_kernel"):
                setattr(module, name, Compile(value, architectures))
    for steps, branches, dtype, constants, decay in VARIANTS:
        print(f"T={steps} branches={branches} {dtype} {constants} {decay}", flush=True)  # noqa: T201
        xs = [
            torch.zeros(steps * 2, 128, 4, 4, dtype=dtype).to(memory_format=torch.channels_last)
            for _ in range(branches)
        ]
        xs = [x.unflatten(0, (steps, 2)) for x in xs]
        decays = None if decay is None else torch.full((128,), decay)
        neurons = Neurons(*(torch.ones(branches, 128) for _ in range(4)), decays, constants)
        found = launchers.statistics(xs)
        for members in (1, 8):
            launchers.join(found.expand(members, -1, -1).contiguous())
        grad, _ = launchers.forward(xs, neurons, False)
        sums, du = launchers.backward_sums(grad, xs, neurons)
        launchers.backward_inputs(grad, xs, neurons, du, sums[: 1 + branches], 32.0 * steps, ())
        launchers.backward_inputs(grad, xs, neurons, du, sums[: 1 + branches], 1.0, ())  # as in a process group
        grad, bits = launchers.forward(xs, neurons, True)
        if branches == 2 and len(bits):
            xs[1] = bits
            launchers.statistics(xs)
            launchers.forward(xs, neurons, True)
            sums, du = launchers.backward_sums(grad, xs, neurons)
            launchers.backward_inputs(grad, xs, neurons, du, sums[:3], 1.0, ())
    for steps, dtype, filled, bits in BARE:
        print(f"T={steps} bare {dtype} {filled} {bits}", flush=True)  # noqa: T201
        x = torch.zeros(steps, 2, 128, dtype=dtype)
        vector = torch.ones(128, dtype=torch.promote_types(dtype, torch.float32))
        maybe = vector if filled else None
        launchers.integrate([x], BareNeurons([maybe], maybe, vector, maybe, maybe, 0.25, "hard", bits))
        launchers.integrate([x, x], BareNeurons([None, maybe], vector, vector, None, None, 0.25, "soft", bits))
    for dtype, levels in QCFS:
        print(f"T=1 qcfs {dtype} {levels}", flush=True)  # noqa: T201
        x, threshold = torch.zeros(4096, dtype=dtype), torch.ones((), dtype=torch.promote_types(dtype, torch.float32))
        triton_qcfs.forward(x, threshold, levels)
        triton_qcfs.backward(x, x, threshold, levels)


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [80, 90])
