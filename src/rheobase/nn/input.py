"""The input of a network."""

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
    """Return the input of a network as a sequence: repeat images [N, C, H, W], pass on a sequence [T, N, C, H, W].

    Every network begins with this call, and `deploy.fold` recognises it. It raises a ValueError if the input does not
    have the given number of `channels`, or the given `size` or `least_size` of images.
    """
    if isinstance(x, fx.Proxy):  # the network is being traced
        return x.tracer.create_proxy("call_function", as_sequence, (x, timesteps), {})
    if not isinstance(x, Tensor):
        raise ValueError(f"expected a tensor as input, got {type(x).__name__}; convert it with torch.as_tensor")
    steps, shape = functional.check_sequence(x, timesteps), list(x.shape)
    if not x.is_floating_point():
        raise ValueError(f"expected floating-point input, got {x.dtype}; convert it with .float()")
    if channels is not None and shape[-3] != channels:
        raise ValueError(f"expected {channels} channels, got {shape[-3]} in input {shape}")
    height, width = shape[-2:]
    if size is not None and (height, width) != (size, size):
        raise ValueError(f"expected images of {size} x {size}, got {height} x {width}")
    if min(height, width) < least_size:
        raise ValueError(
            f"images of {height} x {width} are too small for the strides: expected at least {least_size} pixels a side"
        )
    return hold(x[None], steps) if x.ndim == 4 else x
