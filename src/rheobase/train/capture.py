"""A training step as one CUDA graph: the GPU runs it without waiting for Python.

The step is the same function that runs eagerly. It may read and change tensors in place (weights, optimiser state, a
learning rate kept as a tensor), must not move data to the host, and always gets inputs of the same shapes.
"""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[..., tuple[Tensor, ...]]
Shapes = tuple[torch.Size, ...]


class CapturedStep:
    """Calls `step(*inputs)`; after a few eager calls, which settle autotuning and optimiser state, replays its graph.

    Every call is exactly one step. The graph is for the shapes that came so often first; others always run eagerly.
    """

    def __init__(self, step: Step, *, eager_calls: int = 3) -> None:
        self.step, self.eager_calls = step, eager_calls
        self.calls: Counter[Shapes] = Counter()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        shapes = tuple(x.shape for x in inputs)
        if self.graph is None:
            self.calls[shapes] += 1
            if self.calls[shapes] <= self.eager_calls:
                return self._run_aside(inputs)
            self._capture(inputs)
        elif shapes != tuple(x.shape for x in self.inputs):
            return self.step(*inputs)
        for held, new in zip(self.inputs, inputs, strict=True):
            held.copy_(new)
        assert self.graph is not None
        self.graph.replay()
        return tuple(output.clone() for output in self.outputs)

    def _run_aside(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run on a side stream, as a capture will: gradients must not be tied to the default stream."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = self.step(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(x.clone() for x in inputs)
        torch.cuda.empty_cache()  # the graph has a pool of its own
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = self.step(*self.inputs)


def capture(step: Step, device: torch.device) -> Step:
    """`step` as a CUDA graph on a GPU; `step` itself elsewhere."""
    return CapturedStep(step) if device.type == "cuda" else step
