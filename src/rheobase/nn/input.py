"""What every network begins with."""

from torch import Tensor, fx

from rheobase import functional
from rheobase.nn.convolution import hold


def as_sequence(
    x: Tensor,
    timesteps: int | None = None,
    *,
    channels: int | None = None,
    size: int | None = None,
    least_size: int = 1,
) -> Tensor:
    """The input of a network: images [N, C, H, W] held for `timesteps` steps, or a sequence [T, N, C, H, W] as it is.

    Every network begins with it, and `deploy.fold` knows it. A ValueError says what is wrong with an input: its
    number of `channels`, or the `size` of its images, which may have a least one instead.
    """
    if isinstance(x, fx.Proxy):  # a network that is being traced
        return x.tracer.create_proxy("call_function", as_sequence, (x, timesteps), {})
    steps, shape = functional.check_sequence(x, timesteps), list(x.shape)
    if not x.is_floating_point():
        raise ValueError(f"expected floating-point input, got {x.dtype}; convert it with .float()")
    if channels is not None and shape[-3] != channels:
        raise ValueError(f"expected {channels} channels, got {shape[-3]} in input {shape}")
    height, width = shape[-2:]
    if size is not None and (height, width) != (size, size):
        raise ValueError(f"expected images of {size} x {size}, got {height} x {width}")
    if min(height, width) < least_size:
        raise ValueError(f"an image of {height} x {width} is too small for the strides: expected at least {least_size}")
    return hold(x[None], steps) if x.ndim == 4 else x
