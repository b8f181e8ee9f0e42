"""Classify single images and recordings."""

from pathlib import Path

import torch
from torch import Tensor, nn

from rheobase.functional import readout
from rheobase.tasks.open import as_run, input_dtype, open_as_it_is, ready
from rheobase.train import choose_device
from rheobase.train.capture import capture
from rheobase.train.step import autocast
from rheobase.train.switches import cudnn


class Classifier:
    """The network behind a path. On a GPU, inputs of one shape run as one CUDA graph."""

    def __init__(self, source: Path | str, device: str | torch.device = "auto") -> None:
        network, self.about = open_as_it_is(Path(source))
        if not isinstance(network, nn.Module) and device not in ("auto", "cpu"):
            raise ValueError(f"{source} is an ONNX file, which runs only on the CPU; use --device cpu, or give its run")
        self.device = choose_device(device if isinstance(network, nn.Module) else "cpu")
        self.dtype, self.recipe, self.network = input_dtype(network), self.about.recipe, network
        if isinstance(network, nn.Module):
            self.recipe = as_run(self.recipe, network, self.device)
            self.network = ready(network, self.recipe, self.device, self.dtype)
        self.step = capture(self._classify, self.device, eager_calls=1)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the probabilities [K] of one image [1, C, H, W] or one sequence [T, 1, C, H, W]."""
        if x.ndim > 3 and x.shape[-4] != 1:
            raise ValueError(f"expected one image [1, C, H, W] or sequence [T, 1, C, H, W], got {list(x.shape)}")
        with torch.no_grad(), cudnn(allow_tf32=False):  # TF32 would flip spikes
            (shares,) = self.step(x.to(self.device, self.dtype))
        return shares.cpu()

    def _classify(self, x: Tensor) -> tuple[Tensor, ...]:
        with autocast(self.recipe, self.device):
            logits = self.network(x, self.recipe.timesteps if x.ndim == 4 else None)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return (readout(logits.to(wide)).softmax(1)[0],)
