"""Capture a step of training or evaluation as one CUDA graph, which the GPU runs without waiting for Python.

The step is the same function that runs eagerly. It may read and change tensors in place (weights, optimiser state, a
learning rate kept as a tensor). It must not move data to the host, and its inputs always have the same shapes. It may
contain collectives of a process group. NCCL requires that either all processes replay them or none does. So the shapes
and numbers that a graph is made for must be the same in every process, and either all processes have a graph or none.
"""

import warnings
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from rheobase.files import first_line

Step = Callable[..., tuple[Tensor, ...]]
Input = Tensor | float
Kind = tuple[torch.Size | float, ...]
"""The inputs that a graph is made for: the shapes of tensors, and numbers, which are constants in the graph."""


class CapturedStep:
    """Call `step(*inputs)` eagerly a few times, for autotuning and optimiser state; then replay its graph.

    Every call is exactly one step. There is one graph, for the first kind of inputs that came more than `eager_calls`
    times. Other kinds always run eagerly. So does everything if the step cannot be captured in all processes, which
    `all_agree` finds out.
    """

    def __init__(self, step: Step, *, eager_calls: int = 3, all_agree: Callable[[bool], bool] = bool) -> None:
        self.step, self.eager_calls, self.all_agree = step, eager_calls, all_agree
        self.calls: Counter[Kind] = Counter()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Input, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()
        self.eager = False  # once true, it stays true

    def __call__(self, *inputs: Input) -> tuple[Tensor, ...]:
        kind = _kind(inputs)
        if self.graph is None and not self.eager:
            self.calls[kind] += 1
            if self.calls[kind] <= self.eager_calls:
                return self._run_aside(inputs)
            self._capture(inputs)
        if self.graph is None or kind != _kind(self.inputs):
            return self.step(*inputs)
        for held, new in zip(self.inputs, inputs, strict=True):
            if isinstance(held, Tensor) and isinstance(new, Tensor):
                held.copy_(new)
        self.graph.replay()
        return tuple(output.clone() for output in self.outputs)

    def release(self) -> None:
        """Drop the graph for good. A process group cannot end while graphs hold its collectives."""
        if self.graph is not None:
            self.graph.reset()
        self.graph, self.eager = None, True

    def _run_aside(self, inputs: tuple[Input, ...]) -> tuple[Tensor, ...]:
        """Run on a side stream, as the capture will. Gradients must not be tied to the default stream."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = self.step(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _capture(self, inputs: tuple[Input, ...]) -> None:
        held = tuple(x.clone() if isinstance(x, Tensor) else x for x in inputs)
        torch.cuda.empty_cache()  # the graph has its own memory pool
        graph = torch.cuda.CUDAGraph()
        outputs: tuple[Tensor, ...] | None = None
        reason = "it failed in another process"
        try:
            with torch.cuda.graph(graph):
                made = self.step(*held)
            outputs = made  # only now, as the end of a capture can fail too
        except RuntimeError as error:
            reason = first_line(error)
        if self.all_agree(outputs is not None) and outputs is not None:
            self.inputs, self.outputs, self.graph = held, outputs, graph
            return
        self.eager = True
        warnings.warn(
            f"a step cannot be captured as a CUDA graph ({reason}); it runs eagerly, which is slower; "
            "look for code of yours that moves data to the host, such as .item()",
            stacklevel=2,
        )


def _kind(inputs: tuple[Input, ...]) -> Kind:
    return tuple(x.shape if isinstance(x, Tensor) else x for x in inputs)


def capture(
    step: Step, device: torch.device, all_agree: Callable[[bool], bool] = bool, *, eager_calls: int = 3
) -> Step:
    """Return `step` as a CUDA graph on a GPU, and `step` itself elsewhere."""
    return CapturedStep(step, eager_calls=eager_calls, all_agree=all_agree) if device.type == "cuda" else step


def release(step: Step | None) -> None:
    """Drop the graph of a step, if it has one."""
    if isinstance(step, CapturedStep):
        step.release()
