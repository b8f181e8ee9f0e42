"""The fused soma on the CPU: plain torch operations on blocks of neurons that fit into the cache.

A block takes a part of the batch and of the first spatial axis through all T timesteps. The next block reuses its
buffers, so only inputs and results pass through main memory. Gradients are kept as width * du, which saves one
multiplication per timestep.
"""

from collections.abc import Collection, Iterator
from math import inf, pi, prod

import torch
from torch import Tensor

from rheobase.kernels.fused import Neurons, empty_like_sequence, is_static, one_step_if_static, sums_rows
from rheobase.kernels.group import joined

Block = tuple[slice, ...]  # the part that it takes of one timestep [N, C, ...]

# Elements per thread: as many as a cache holds, in all buffers of a block; the fewest that torch gives a thread.
_CACHED = 1024 * 1024
_GRAIN = 32 * 1024

# (grad, u, low, high) -> grad where low < u < high, else 0: the open window of the surrogate, and also the reset
_pass_between = torch.ops.aten.hardtanh_backward.grad_input

# The surrogates (`functional` has the law) turn the gradient of a spike into width times that of u. They write to
# `out`, which may be `grad` itself, and use `scratch`.


def rectangle(grad: Tensor, u: Tensor, v_th: float, width: float, scratch: Tensor, out: Tensor) -> None:
    _pass_between(grad, u, v_th - width / 2, v_th + width / 2, grad_input=out)


def triangle(grad: Tensor, u: Tensor, v_th: float, width: float, scratch: Tensor, out: Tensor) -> None:
    distance = torch.sub(u, v_th, out=scratch).abs_().mul_(1 / width).clamp_(max=1)
    torch.addcmul(grad, grad, distance, value=-1, out=out)


def sigmoid(grad: Tensor, u: Tensor, v_th: float, width: float, scratch: Tensor, out: Tensor) -> None:
    e = torch.sub(u, v_th, out=scratch).abs_().mul_(-4 / width).exp_()
    torch.mul(grad, e, out=out)
    out.div_(e.add_(1).square_()).mul_(4)


def atan(grad: Tensor, u: Tensor, v_th: float, width: float, scratch: Tensor, out: Tensor) -> None:
    z = torch.sub(u, v_th, out=scratch).mul_(pi / width)
    torch.div(grad, z.square_().add_(1), out=out)


SURROGATES = {"rectangle": rectangle, "triangle": triangle, "sigmoid": sigmoid, "atan": atan}


def statistics(xs: list[Tensor]) -> Tensor:
    means, variances = zip(*(_statistics(x) for x in xs), strict=True)
    return torch.stack([*means, *variances, torch.full_like(means[0], xs[0].numel() / xs[0].shape[2])])


def join(everyone: Tensor) -> Tensor:
    return joined(everyone)


def forward(xs: list[Tensor], neurons: Neurons, pack: bool) -> tuple[Tensor, Tensor]:
    spikes = empty_like_sequence(xs[0])
    soma = _Soma(xs, neurons, kept=1)
    for block in soma.blocks:
        wide = _fit(soma.rest, block)[-1]
        for s, u in zip(_part(spikes, block), soma.potentials(block), strict=True):
            _narrowed(torch.gt(u, neurons.constants.v_th, out=wide if s.dtype != u.dtype else s), s)
    return spikes, torch.empty(0, dtype=torch.uint8)  # packed later, where they are needed


def backward_sums(grad: Tensor, xs: list[Tensor], neurons: Neurons, keep: bool) -> tuple[Tensor, Tensor]:
    soma = _Soma(xs, neurons, kept=len(grad))
    kept = empty_like_sequence(xs[0]).to(neurons.weight.dtype) if keep else None
    accumulators, deviations = soma.buffer(sums_rows(neurons)), soma.buffer(1)
    centres = _per_channel(neurons.mean, grad)
    sums = []
    for block in soma.blocks:
        total, *others = found = _fit(accumulators, block).zero_()
        products, by_decay = others[: len(xs)], others[len(xs)] if len(others) > len(xs) else None
        (deviation,) = _fit(deviations, block)
        branches = [(_part(x, block), *rest) for x, *rest in zip(xs, centres, products, strict=True)]
        for t, du in soma.gradients(grad, block, None if kept is None else _part(kept, block), by_decay):
            total.add_(du)
            for x, centre, product in branches:
                if not is_static(x):
                    product.addcmul_(du, torch.sub(_widened(x[t], deviation), centre, out=deviation))
        for x, centre, product in branches:
            if is_static(x):
                product.addcmul_(total, torch.sub(_widened(x[0], deviation), centre, out=deviation))
        sums.append(torch.stack([_sums(_by_thread(accumulator)) for accumulator in found]))
    result = torch.cat(sums, 1).double().sum(1) / neurons.constants.width
    result[1 : 1 + len(xs)] *= soma.gain
    return result.to(neurons.mean.dtype), neurons.weight.new_empty(0) if kept is None else kept


def backward_inputs(
    grad: Tensor,
    xs: list[Tensor],
    neurons: Neurons,
    du: Tensor,
    sums: Tensor,
    count: float,
    overwritten: Collection[int],
) -> list[Tensor]:
    known = len(du) > 0
    soma = _Soma(xs, neurons, kept=1 if known else len(grad))
    # dx = by_du * (width * du) + by_x * x + offset, each per branch and channel
    by_x = -soma.scale * soma.gain * sums[1:].double() / (soma.k**2 * count)
    offset = -soma.scale * sums[0].double() / count - by_x * neurons.mean.double()
    by_du, dtype = soma.scale / neurons.constants.width, neurons.mean.dtype
    by_du, by_x, offset = (_per_channel(f.to(dtype), grad) for f in (by_du, by_x, offset))
    offsets = soma.buffer(len(xs)).copy_(offset[:, None])
    totals, unrounded = soma.buffer(1), soma.buffer(1)
    outputs = [x if i in overwritten else empty_like_sequence(one_step_if_static(x)) for i, x in enumerate(xs)]
    for block in soma.blocks:
        (total,), (wide,) = _fit(totals, block).zero_(), _fit(unrounded, block)
        branches = [
            (_part(x, block), _part(dx, block), *rest)
            for x, dx, *rest in zip(xs, outputs, by_du, by_x, _fit(offsets, block), strict=True)
        ]
        steps = reversed([*enumerate(_part(du, block))]) if known else soma.gradients(grad, block)
        for t, du_t in steps:
            for x, dx, *factors in branches:
                if not is_static(x):
                    _write_gradient(dx[t], wide, du_t, x[t], *factors)
            if soma.static:
                total.add_(du_t, alpha=1 / len(grad))
        for x, dx, *factors in branches:
            if is_static(x):
                _write_gradient(dx[0], wide, total, x[0], *factors)
    return outputs


def _write_gradient(
    dx: Tensor, wide: Tensor, du: Tensor, x: Tensor, by_du: Tensor, by_x: Tensor, offset: Tensor
) -> None:
    out = dx if dx.dtype == wide.dtype else wide  # half precision is rounded once, at the end
    _narrowed(torch.addcmul(offset, _widened(x, wide), by_x, out=out).addcmul_(du, by_du), dx)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance, combined from those of all parts without cancellation (Chan et al. 1979)."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    blocks = _blocks(x, buffers=1)
    buffer = _buffer(x, blocks[0], 1, dtype)
    found = []
    for x_t in one_step_if_static(x):
        for block in blocks:
            part, deviation = _by_thread(x_t[block]), _by_thread(_fit(buffer, block)[0])
            count = part[0].numel() / x.shape[2]
            part = _widened(part, deviation)
            centre = _sums(part) / count
            torch.sub(part, _per_channel(centre[:, None], x), out=deviation)
            # deviations are relative to a rounded mean, so their sum is kept to correct for the rounding
            found.append((torch.full_like(centre, count), centre, _sums(deviation), _sums(deviation.square_())))
    counts, centres, sums, squares = (torch.cat(values).double() for values in zip(*found, strict=True))
    means, total = centres + sums / counts, counts.sum(0)
    mean = (counts * means).sum(0) / total
    variance = (squares + counts * (means - mean).square()).sum(0) / total
    return mean.to(dtype), variance.to(dtype)


class _Soma:
    """The neurons of one call, block by block. `kept` potentials of a block stay in memory at once."""

    def __init__(self, xs: list[Tensor], neurons: Neurons, *, kept: int) -> None:
        weight, bias, mean, var, decays, constants = neurons
        self.v_th, self.width, self.reset_gradient = constants.v_th, constants.width, constants.reset_gradient
        self.soft = constants.reset == "soft"
        self.through_spike = SURROGATES[constants.surrogate]
        self.decay = constants.decay
        self.decays = None if decays is None else _per_channel(decays, xs[0])
        self.xs = xs
        self.static = any(map(is_static, xs))
        self.k = self.v_th * len(xs) ** -0.5
        self.gain = self.k * torch.rsqrt(var.double() + constants.eps)
        self.scale = weight.double() * self.gain
        shift = (bias.double() - self.scale * mean.double()).sum(0)
        self._scale, self._shift = (_per_channel(p.to(weight.dtype), xs[0]) for p in (self.scale, shift))
        rest = 3 if self.through_spike is rectangle else 4
        self.blocks = _blocks(xs[0], buffers=kept + rest)
        self._potentials, self.rest = self.buffer(kept), self.buffer(rest)
        self.rest[0] = self._shift
        self._above_threshold = _next_above(self.v_th, weight.dtype)

    def buffer(self, count: int) -> Tensor:
        """Return memory for `count` timesteps of a block."""
        return _buffer(self.xs[0], self.blocks[0], count, self._scale.dtype)

    def potentials(self, block: Block) -> Iterator[Tensor]:
        """Yield the potential at every timestep, before the reset."""
        constant, v, *_, wide = _fit(self.rest, block)
        moving = []
        if self.static:
            constant.copy_(self._shift)
        for x, scale in zip(self.xs, self._scale, strict=True):
            part = _part(x, block)
            if is_static(x):
                constant.addcmul_(_widened(part[0], wide), scale)
            else:
                moving.append((part, scale))
        kept = _fit(self._potentials, block)
        for t in range(len(self.xs[0])):
            u, source = kept[t % len(kept)], constant
            for x, scale in moving:
                source = torch.addcmul(source, _widened(x[t], wide), scale, out=u)
            if t > 0 and self.decays is not None:
                torch.addcmul(source, v, self.decays, out=u)
            elif t > 0:
                torch.add(source, v, alpha=self.decay, out=u)
            elif source is constant:
                u.copy_(constant)
            yield u
            self.reset(u, out=v)

    def reset(self, u: Tensor, *, out: Tensor) -> None:
        """Write the potential after the reset."""
        if self.soft:
            torch.sub(u, torch.gt(u, self.v_th, out=out), alpha=self.v_th, out=out)
        else:
            _pass_between(u, u, -inf, self._above_threshold, grad_input=out)

    def gradients(
        self, grad: Tensor, block: Block, keep: Tensor | None = None, by_decay: Tensor | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield every timestep t, from the last to the first, and the gradient of its current times `width`.

        If given, `keep` [T, ...] keeps these gradients, and the gradient of the decay, also times `width`, is added to
        `by_decay`.
        """
        potentials = list(self.potentials(block))
        _, by_spike, buffer, *spare = _fit(self.rest, block)
        scratch = spare[0] if spare else by_spike
        grads = _part(grad, block)
        last = len(potentials) - 1
        du = buffer if keep is None else keep[last]
        upstream = _widened(grads[last], by_spike)
        self.through_spike(upstream, potentials[last], self.v_th, self.width, scratch, out=du)
        yield last, du
        decay = self.decay if self.decays is None else 1.0
        for t in reversed(range(last)):
            u = potentials[t]
            if by_decay is not None:
                self.reset(u, out=by_spike)
                by_decay.addcmul_(du, by_spike)
            after = du if self.decays is None else torch.mul(du, self.decays, out=buffer)
            upstream = _widened(grads[t], by_spike)
            if self.reset_gradient and self.soft:
                upstream = torch.add(upstream, after, alpha=-decay * self.v_th / self.width, out=by_spike)
            elif self.reset_gradient:
                upstream = torch.addcmul(upstream, u, after, value=-decay / self.width, out=by_spike)
            self.through_spike(upstream, u, self.v_th, self.width, scratch, out=by_spike)
            if not self.soft:
                after = _pass_between(after, u, -inf, self._above_threshold, grad_input=buffer)
            du = torch.add(by_spike, after, alpha=decay, out=buffer if keep is None else keep[t])
            yield t, du


def _blocks(x: Tensor, buffers: int) -> list[Block]:
    """Return blocks of one timestep of x, so small that this number of buffers of their size fits into the cache.

    Every thread gets whole images, or the same rows of one image. Torch gives each thread an equal part of the
    outermost dimension, so a thread finds in its own cache what it wrote there, in convolutions too.
    """
    threads = torch.get_num_threads()
    limit = threads * max(_GRAIN, _CACHED // buffers)
    samples = threads * max(1, 2 * _GRAIN // prod(x.shape[2:]))
    parts: list[Block] = [(slice(i, min(i + samples, x.shape[1])),) for i in range(0, x.shape[1], samples)]
    if x.ndim == 3:
        return parts
    rows = max(1, limit // prod((samples, x.shape[2], *x.shape[4:])))
    return [
        (*part, slice(None), slice(i, min(i + rows, x.shape[3]))) for part in parts for i in range(0, x.shape[3], rows)
    ]


def _by_thread(part: Tensor) -> Tensor:
    """Split a block [n, C, ...] into the parts of the threads: [threads, n / threads, C, ...]."""
    threads = torch.get_num_threads()
    return part.unflatten(0, (threads, -1) if len(part) % threads == 0 else (1, -1))


def _widened(x: Tensor, buffer: Tensor) -> Tensor:
    """Return x in the type of the buffer, where it is copied if needed: torch is slow where types are mixed."""
    return x if x.dtype == buffer.dtype else buffer.copy_(x)


def _narrowed(x: Tensor, result: Tensor) -> None:
    """Copy x to a result of another type; otherwise it is there already."""
    if x.dtype != result.dtype:
        result.copy_(x)


def _sums(part: Tensor) -> Tensor:
    """Return the sums per thread and channel: [threads, C]."""
    return part.sum([axis for axis in range(part.ndim) if axis not in (0, 2)])


def _part(x: Tensor, block: Block) -> Tensor:
    return x[:, *block]


def _buffer(x: Tensor, block: Block, count: int, dtype: torch.dtype) -> Tensor:
    """Return memory for `count` blocks, in the memory order of x."""
    like = _part(x[:1], block).expand(count, *[-1] * (x.ndim - 1))
    return empty_like_sequence(like).to(dtype)


def _fit(buffer: Tensor, block: Block) -> Tensor:
    """Return the part of a buffer that this block fills. Blocks at an edge are smaller."""
    return buffer[:, *(slice(None) if s == slice(None) else slice(s.stop - s.start) for s in block)]


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """Return values [..., C] in a shape that broadcasts with one timestep of x."""
    return values[(..., *[None] * (x.ndim - 3))]


def _next_above(value: float, dtype: torch.dtype) -> float:
    """Return the next larger number, so that u < next_above is the same as u <= value."""
    return torch.nextafter(torch.tensor(value, dtype=dtype), torch.tensor(inf, dtype=dtype)).item()
