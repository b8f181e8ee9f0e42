"""A step of training or evaluation as one CUDA graph: the GPU runs it without waiting for Python.

The step is the same function that runs eagerly. It may read and change tensors in place (weights, optimiser state, a
learning rate kept as a tensor), must not move data to the host, and always gets inputs of the same shapes. It may hold
collectives of a process group. NCCL wants all members to replay them then, or none: so a graph is for shapes and
numbers that say the same in every process, and all of them have one, or none.
"""

import warnings
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[..., tuple[Tensor, ...]]
Input = Tensor | float
Kind = tuple[torch.Size | float, ...]
"""What a graph is made for: the shapes of tensors, and numbers, which are constants of it."""


class CapturedStep:
    """Calls `step(*inputs)`; after a few eager calls, which settle autotuning and optimiser state, replays its graph.

    Every call is exactly one step. The graph is for the kind of inputs that came so often first; others always run
    eagerly, and so does everything if a step cannot be captured. `all_agree` asks the other processes about that.
    """

    def __init__(self, step: Step, *, eager_calls: int = 3, all_agree: Callable[[bool], bool] = bool) -> None:
        self.step, self.eager_calls, self.all_agree = step, eager_calls, all_agree
        self.calls: Counter[Kind] = Counter()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Input, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()
        self.eager = False  # for good

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
        """Give the graph up, for good. A process group does not end before the graphs that hold its collectives."""
        if self.graph is not None:
            self.graph.reset()
        self.graph, self.eager = None, True

    def _run_aside(self, inputs: tuple[Input, ...]) -> tuple[Tensor, ...]:
        """Run on a side stream, as a capture will: gradients must not be tied to the default stream."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = self.step(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _capture(self, inputs: tuple[Input, ...]) -> None:
        held = tuple(x.clone() if isinstance(x, Tensor) else x for x in inputs)
        torch.cuda.empty_cache()  # the graph has a pool of its own
        graph = torch.cuda.CUDAGraph()
        outputs: tuple[Tensor, ...] | None = None
        reason = "another process could not"
        try:
            with torch.cuda.graph(graph):
                made = self.step(*held)
            outputs = made  # the end of a capture can fail too
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
        if self.all_agree(outputs is not None) and outputs is not None:
            self.inputs, self.outputs, self.graph = held, outputs, graph
            return
        self.eager = True
        warnings.warn(
            f"a step cannot become a CUDA graph and runs eagerly, which is slower ({reason}); "
            "a part of yours moves data to the host, .item() for example",
            stacklevel=2,
        )


def _kind(inputs: tuple[Input, ...]) -> Kind:
    return tuple(x.shape if isinstance(x, Tensor) else x for x in inputs)


def capture(
    step: Step, device: torch.device, all_agree: Callable[[bool], bool] = bool, *, eager_calls: int = 3
) -> Step:
    """`step` as a CUDA graph on a GPU; `step` itself elsewhere."""
    return CapturedStep(step, eager_calls=eager_calls, all_agree=all_agree) if device.type == "cuda" else step


def release(step: Step | None) -> None:
    """Give up the graph of a captured step; any other has none."""
    if isinstance(step, CapturedStep):
        step.release()
