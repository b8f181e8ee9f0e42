"""A step of training or evaluation as one CUDA graph: the GPU runs it without waiting for Python.

The step is the same function that runs eagerly. It may read and change tensors in place (weights, optimiser state, a
learning rate kept as a tensor), must not move data to the host, and always gets inputs of the same shapes.
"""

import warnings
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[..., tuple[Tensor, ...]]
Shapes = tuple[torch.Size, ...]


class CapturedStep:
    """Calls `step(*inputs)`; after a few eager calls, which settle autotuning and optimiser state, replays its graph.

    Every call is exactly one step. The graph is for the shapes that came so often first; others always run eagerly,
    and so does everything if a step cannot be captured.
    """

    def __init__(self, step: Step, *, eager_calls: int = 3) -> None:
        self.step, self.eager_calls = step, eager_calls
        self.calls: Counter[Shapes] = Counter()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()
        self.eager = False  # for good

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        shapes = tuple(x.shape for x in inputs)
        if self.graph is None and not self.eager:
            self.calls[shapes] += 1
            if self.calls[shapes] <= self.eager_calls:
                return self._run_aside(inputs)
            self._capture(inputs)
        if self.graph is None or shapes != tuple(x.shape for x in self.inputs):
            return self.step(*inputs)
        for held, new in zip(self.inputs, inputs, strict=True):
            held.copy_(new)
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
        held = tuple(x.clone() for x in inputs)
        torch.cuda.empty_cache()  # the graph has a pool of its own
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                outputs = self.step(*held)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"a step cannot become a CUDA graph and runs eagerly, which is slower ({reason}); "
                "a part of yours moves data to the host, .item() for example",
                stacklevel=2,
            )
            self.eager = True
            return
        self.inputs, self.outputs, self.graph = held, outputs, graph


def capture(step: Step, device: torch.device, *, eager_calls: int = 3) -> Step:
    """`step` as a CUDA graph on a GPU; `step` itself elsewhere."""
    return CapturedStep(step, eager_calls=eager_calls) if device.type == "cuda" else step
