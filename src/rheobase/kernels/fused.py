"""The fused soma: four steps behind one autograd function, each a torch operator with one body per backend.

    statistics -> forward -> (spikes) ... (gradient of the spikes) -> backward_sums -> backward_inputs

In a process group there is one collective after the first and one after the third; `join` follows the former.

Only the inputs are kept for the backward pass, which recomputes the membrane potential. With du the gradient of the
loss with respect to the summed current, k = alpha * v_th, r = 1 / sqrt(var + eps) and M values per channel:

    d bias = sum du,  d weight = k * r * sum du * (x - mean)        (the sums, added up over the process group)
    dx = weight * k * r * (du - d bias / M - (x - mean) * r / k * d weight / M)
    d decay = sum du[t] * v[t-1], where v is the potential after the reset

Constant moments (inference) are the case M = infinity.

On a GPU, `forward` can also pack the spikes, and the second of two branches can be packed spikes (see `packing`).
"""

from collections.abc import Sequence
from importlib import import_module
from math import inf, isinf
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from rheobase import functional
from rheobase.kernels.group import gathered
from rheobase.kernels.packing import neurons_per_byte


class Constants(NamedTuple):
    """The settings that all neurons of a soma share."""

    decay: float
    """Not used if decays are learnt: then `Neurons.decays` has them."""
    v_th: float
    width: float
    eps: float
    surrogate: str = "rectangle"
    reset: str = "hard"
    reset_gradient: bool = True


class Neurons(NamedTuple):
    """A layer of neurons with n branches: tdBN of every branch, each tensor [n, C], and how they fire."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    var: Tensor
    decays: Tensor | None
    """[C], if they are learnt."""
    constants: Constants

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The values one by one, because schemas of operators have no tuples of tensors."""
        return (*self[:-1], *self.constants)

    @classmethod
    def of(cls, arguments: Sequence[Any]) -> "Neurons":
        weight, bias, mean, var, decays, *constants = arguments
        return cls(weight, bias, mean, var, decays, Constants(*constants))


class Received(NamedTuple):
    """What tells the kernels that a soma needs: equal for all somas that need the same ones."""

    xs: tuple[tuple[torch.Size, tuple[int, ...], torch.dtype], ...]
    """Shape, strides and type of every branch."""
    constants: Constants
    learns_decay: bool
    normalises: bool
    members: int | None
    """Of its process group."""
    packs: bool
    reads_bits: bool
    """Whether its second branch is packed spikes."""


_NEURONS = (
    "Tensor weight, Tensor bias, Tensor mean, Tensor var, Tensor? decays, float decay, float v_th, float width, "
    "float eps, str surrogate, str reset, bool reset_gradient"
)


def _backend(name: str) -> ModuleType:
    return import_module(f"rheobase.kernels.{name}")


@torch.library.custom_op("rheobase::statistics", mutates_args=())
def statistics(xs: list[Tensor], backend: str) -> Tensor:
    """Return means and biased variances per channel of all branches, and the number of values: [2n + 1, C]."""
    return _backend(backend).statistics(xs)


@torch.library.custom_op("rheobase::join", mutates_args=())
def join(everyone: Tensor, backend: str) -> Tensor:
    """Compute `group.joined`: join the statistics [members, 2n + 1, C] of all members."""
    return _backend(backend).join(everyone)


@torch.library.custom_op(
    "rheobase::forward",
    mutates_args=(),
    schema=f"(Tensor[] xs, {_NEURONS}, bool pack, str backend) -> (Tensor, Tensor)",
)
def forward(xs: list[Tensor], *arguments: Any) -> tuple[Tensor, Tensor]:
    """Return the spikes [T, N, C, ...] and, if asked to `pack` and able to, their bits. Otherwise these are empty."""
    *neurons, pack, backend = arguments
    return _backend(backend).forward(xs, Neurons.of(neurons), pack)


@torch.library.custom_op(
    "rheobase::backward_sums",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor[] xs, {_NEURONS}, bool keep, str backend) -> (Tensor, Tensor)",
)
def backward_sums(grad: Tensor, xs: list[Tensor], *arguments: Any) -> tuple[Tensor, Tensor]:
    """Return the gradients of the biases (all equal), every weight and learnt decays: [1 + n, C] or [2 + n, C].

    The second result is the gradient of the current [T, N, C, ...], if asked to `keep` it, or empty. Only a CPU can:
    there, it takes longer to compute than to read again.
    """
    *neurons, keep, backend = arguments
    return _backend(backend).backward_sums(grad, xs, Neurons.of(neurons), keep)


@torch.library.custom_op(
    "rheobase::backward_inputs",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor[] xs, {_NEURONS}, Tensor du, Tensor sums, float count, str backend) -> Tensor[]",
)
def backward_inputs(grad: Tensor, xs: list[Tensor], *arguments: Any) -> list[Tensor]:
    """Return the gradient of every branch. For a static branch, this is the mean over T: [1, N, C, ...].

    `du` and `sums` are from `backward_sums`; `sums` only those of the bias and of every weight: [1 + n, C].
    """
    *neurons, du, sums, count, backend = arguments
    return _backend(backend).backward_inputs(grad, xs, Neurons.of(neurons), du, sums, count, ())


@torch.library.custom_op(
    "rheobase::backward_inputs_",
    mutates_args={"overwritten"},
    schema=f"(Tensor grad, Tensor[] xs, Tensor(a0!)[] overwritten, int[] places, {_NEURONS}, Tensor du, Tensor sums, "
    "float count, str backend) -> Tensor[]",
)
def backward_inputs_(
    grad: Tensor, xs: list[Tensor], overwritten: list[Tensor], places: list[int], *arguments: Any
) -> list[Tensor]:
    """Compute `backward_inputs`, where the gradients of some branches overwrite them. These must not be static.

    `xs` are the other branches, whose gradients are returned. `places` are the indices of the `overwritten` branches.
    """
    *neurons, du, sums, count, backend = arguments
    branches = _merged(xs, overwritten, places)
    grads = _backend(backend).backward_inputs(grad, branches, Neurons.of(neurons), du, sums, count, places)
    return [grad for i, grad in enumerate(grads) if i not in places]


@statistics.register_fake
def _(xs: list[Tensor], backend: str) -> Tensor:
    dtype = torch.promote_types(xs[0].dtype, torch.float32)
    return xs[0].new_empty(2 * len(xs) + 1, xs[0].shape[2], dtype=dtype)


@join.register_fake
def _(everyone: Tensor, backend: str) -> Tensor:
    return torch.empty_like(everyone[0])


@forward.register_fake
def _(xs: list[Tensor], *arguments: Any) -> tuple[Tensor, Tensor]:
    spikes, (*_, pack, backend) = empty_like_sequence(xs[0]), arguments
    packed = pack and backend == "triton" and neurons_per_byte(spikes)
    return spikes, spikes.new_empty(spikes.numel() // 8 if packed else 0, dtype=torch.uint8)


@backward_sums.register_fake
def _(grad: Tensor, xs: list[Tensor], *arguments: Any) -> tuple[Tensor, Tensor]:
    *of, keep, _ = arguments
    neurons, weight = Neurons.of(of), arguments[0]
    kept = empty_like_sequence(xs[0]).to(weight.dtype) if keep else weight.new_empty(0)
    return weight.new_empty(sums_rows(neurons), weight.shape[1]), kept


@backward_inputs.register_fake
def _(grad: Tensor, xs: list[Tensor], *arguments: Any) -> list[Tensor]:
    return _empty_gradients(xs, xs[0])


@backward_inputs_.register_fake
def _(grad: Tensor, xs: list[Tensor], overwritten: list[Tensor], places: list[int], *arguments: Any) -> list[Tensor]:
    return _empty_gradients(xs, _merged(xs, overwritten, places)[0])


def _empty_gradients(xs: list[Tensor], first: Tensor) -> list[Tensor]:
    """Return memory for the gradients of branches, where that of packed spikes lies like the first branch."""
    return [empty_like_sequence(first if are_bits(x) else one_step_if_static(x)) for x in xs]


def sums_rows(neurons: Neurons) -> int:
    """Return the number of sums per channel of `backward_sums`: for the bias, every weight and learnt decays."""
    return 1 + len(neurons.weight) + (neurons.decays is not None)


def _merged(others: list[Tensor], placed: list[Tensor], places: list[int]) -> list[Tensor]:
    """Return one list with `placed` at the indices `places` and the others around them, in order."""
    merged = list(others)
    for place, tensor in zip(places, placed, strict=True):
        merged.insert(place, tensor)
    return merged


def are_bits(x: Tensor) -> bool:
    """Return whether a branch is packed spikes."""
    return x.dtype == torch.uint8


def is_static(x: Tensor) -> bool:
    """Return whether all timesteps of x are the same memory."""
    return x.stride(0) == 0 and x.shape[0] > 1


def one_step_if_static(x: Tensor) -> Tensor:
    return x[:1] if is_static(x) else x


def empty_like_sequence(x: Tensor) -> Tensor:
    """Return a new dense tensor of x's shape and dtype, with the memory order of one step (channels last or first)."""
    order = sorted(range(1, x.ndim), key=lambda d: x.stride(d), reverse=True)
    shape = [x.shape[0], *(x.shape[d] for d in order)]
    back = [0] * x.ndim
    for position, d in enumerate([0, *order]):
        back[d] = position
    return torch.empty(shape, dtype=x.dtype, device=x.device).permute(back)


class Settings(NamedTuple):
    """What a soma passes on besides tensors."""

    constants: Constants
    group: dist.ProcessGroup | None
    backend: str
    pack: bool = False
    """Whether to pack the spikes as well."""


class Values(NamedTuple):
    """How many values per channel the moments were computed from: infinitely many if the moments were given."""

    number: float = inf
    inverse: Tensor | None = None
    """In a process group: the inverse [1, C] of the number of values of all members, used instead of `number`."""


class Result(NamedTuple):
    spikes: Tensor
    bits: Tensor
    neurons: Neurons
    values: Values


def run_forward(
    xs: list[Tensor],
    weight: Tensor,
    bias: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    decays: Tensor | None,
    settings: Settings,
) -> Result:
    """The first two steps; without mean and var, with the moments of the batch."""
    constants, group, backend, pack = settings
    values = Values()
    if mean is None or var is None:
        for x in (x for x in xs if not are_bits(x)):
            functional.check_count(one_step_if_static(x))
        found, n = statistics(xs, backend), len(xs)
        values = Values(xs[0].numel() / xs[0].shape[2])
        if group is not None:
            found = join(gathered(found, group), backend)
            values = Values(1.0, found[2 * n :])
        mean, var = found[:n], found[n : 2 * n]
    neurons = Neurons(weight, bias, mean, var, decays, constants)
    spikes, bits = forward(xs, *neurons.arguments, pack, backend)
    return Result(spikes, bits, neurons, values)


class Gradients(NamedTuple):
    weight: Tensor
    bias: Tensor
    decays: Tensor | None
    xs: list[Tensor]


def run_backward(
    grad: Tensor,
    xs: list[Tensor],
    neurons: Neurons,
    values: Values,
    group: dist.ProcessGroup | None,
    backend: str,
    disposable: Sequence[int] = (),
    *,
    by_inputs_alone: bool = False,
) -> Gradients:
    """The last two steps; the gradients of `disposable` branches, in ascending order, overwrite them.

    Where gradients are wanted of the inputs alone and the moments are constants, nobody needs the sums.
    """
    arguments, n = neurons.arguments, len(xs)
    if by_inputs_alone and isinf(values.number):
        found, du = neurons.weight.new_zeros(sums_rows(neurons), neurons.weight.shape[1]), neurons.weight.new_empty(0)
    else:
        # not for tensors without content: a prediction of a GPU's memory uses them on a CPU
        found, du = backward_sums(grad, xs, *arguments, backend == "cpu" and type(grad) is Tensor, backend)
    sums, by_decays = found[: 1 + n], None if neurons.decays is None else found[1 + n]
    grad_weight, grad_bias = sums[1:], sums[:1].expand_as(neurons.bias)
    if values.inverse is not None:
        sums = sums * values.inverse  # so that they become means over all values, of which 1 remains to divide by
        dist.all_reduce(sums, group=group)
    if disposable:
        places = list(disposable)
        overwritten, others = [xs[i] for i in places], [x for i, x in enumerate(xs) if i not in places]
        new = backward_inputs_(grad, others, overwritten, places, *arguments, du, sums, values.number, backend)
        grads = _merged(new, overwritten, places)
    else:
        grads = backward_inputs(grad, xs, *arguments, du, sums, values.number, backend)
    by_xs = [g if are_bits(x) else g.expand_as(x) for g, x in zip(grads, xs, strict=True)]
    return Gradients(grad_weight, grad_bias, by_decays, by_xs)


def refuse_higher_derivatives() -> None:
    """Raise an error if called in a differentiable backward pass. (`once_differentiable` lets some pass as zeros.)"""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "the kernels of a Soma know first derivatives only; "
            "rheobase.analysis.somas.on_reference(network) is a copy that knows all"
        )


def leave_out_all_but_spikes(ctx: Any, result: Result) -> None:
    """To be called in a forward pass: only spikes have gradients. Nobody shall fill tensors with zeros for the rest."""
    ctx.mark_non_differentiable(result.neurons.mean, result.neurons.var, result.bits)
    if not torch.compiler.is_compiling():
        ctx.set_materialize_grads(False)


class FusedFire(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, settings: Settings, *tensors: Any) -> tuple[Tensor, ...]:
        # With a parameter for each tensor, torch 2.13 compiles calls with two branches as if there were no `ctx`.
        weight, bias, mean, var, decays, *xs = tensors
        result = run_forward(xs, weight, bias, mean, var, decays, settings)
        ctx.save_for_backward(*result.neurons[:-1], *xs)
        ctx.settings, ctx.values = settings, result.values
        leave_out_all_but_spikes(ctx, result)
        return result.spikes, result.neurons.mean, result.neurons.var, result.bits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_higher_derivatives()
        if grads[0] is None:
            return (None,) * len(ctx.needs_input_grad)
        weight, bias, mean, var, decays, *xs = ctx.saved_tensors
        constants, group, backend, _ = ctx.settings
        neurons = Neurons(weight, bias, mean, var, decays, constants)
        alone = not any(ctx.needs_input_grad[i] for i in (1, 2, 5))  # of weight, bias and decays
        found = run_backward(grads[0], xs, neurons, ctx.values, group, backend, by_inputs_alone=alone)
        return None, found.weight, found.bias, None, None, found.decays, *found.xs
