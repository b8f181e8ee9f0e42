"""Import checkpoints of other tdBN code bases, exactly.

Our tdBN is y = weight * alpha * v_th * (x - mean) / sqrt(var + eps) + bias, where alpha * v_th is a constant of the
layer. Others write it in two styles:

    gamma     y = gamma * (x - mean) / sqrt(var + eps) + beta, where alpha * v_th was only the initial value of gamma
              (SpikingJelly, BrainCog, MS-ResNet; also plain batch normalisation over T and N)
    explicit  y = weight * factor * (x - mean) / sqrt(var + eps) + bias, with factor = alpha * v_th (STBP-simple)

A shortcut that they do not normalise gets a normalisation that changes nothing. Such checkpoints do not contain the
settings of the neurons, so build the network with the same ones. (SpikingJelly's LIFNode with decay_input=False has
decay = 1 - 1 / tau and v_th = v_threshold.)
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from rheobase.files import first_line
from rheobase.models import SpikingNet
from rheobase.nn import TdBN

STYLES = ("gamma", "explicit")
State = Mapping[str, Tensor]


def read_state(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint (`.safetensors`, or written by `torch.save`). Loading it runs no code."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickles break in many ways
        raise ValueError(f"{path}: not a checkpoint of tensors, or damaged: {first_line(error)}") from error
    for key in ("state_dict", "model", "net"):
        found = found[key] if isinstance(found, dict) and isinstance(found.get(key), dict) else found
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise ValueError(f"{path}: expected a checkpoint that maps names to tensors")
    return {name.removeprefix("module."): tensor for name, tensor in found.items()}


def branch_names(model: SpikingNet) -> list[str]:
    """Return the keys that `names` of `import_state` needs: every synapse, and `<layer>.<branch>` for every tdBN."""
    names: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            names.append(path)
        elif isinstance(module, TdBN) and module.normalize:
            names += [f"{path}.{branch}" for branch in range(module.branches)]
    return names


@torch.no_grad()
def import_state(
    model: SpikingNet,
    state: State,
    names: Mapping[str, str | None],
    *,
    style: str,
    eps: float = 1e-5,
    factors: Mapping[str, float] | None = None,
) -> None:
    """Load the tensors `state` of another code base into `model`.

    `names` maps each of `branch_names` to the prefix of their layer, or to None if they do not normalise the branch.
    `eps` is the one they use. In style "explicit", `factors` gives their alpha * v_th where it differs from ours.
    """
    if style not in STYLES:
        raise ValueError(f"unknown style '{style}'; choose one of {', '.join(STYLES)}")
    wrong = set(branch_names(model)) ^ set(names)
    if wrong:
        raise ValueError(f"names must list every layer of the network once; check {', '.join(sorted(wrong))}")
    used: set[str] = set()

    def take(prefix: str | None, key: str, shape: torch.Size) -> Tensor:
        name = f"{prefix}.{key}"
        if name not in state:
            raise ValueError(f"the checkpoint has no '{name}'; its layers are {_prefixes(state)}")
        if state[name].shape != shape:
            raise ValueError(f"'{name}' has the shape {list(state[name].shape)}, expected {list(shape)}")
        used.add(name)
        return state[name].double()

    for path, module in model.named_modules():
        prefix = names.get(path)
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.weight.copy_(take(prefix, "weight", module.weight.shape))
            if f"{prefix}.bias" in state:
                bias = take(prefix, "bias", module.weight.shape[:1])
                module.bias = nn.Parameter(bias.to(module.weight))
            elif module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, TdBN) and module.normalize:
            for branch in range(module.branches):
                key, own = f"{path}.{branch}", module.branches**-0.5 * module.v_th
                factor = 1.0 if style == "gamma" else (factors or {}).get(key, own)
                shape = module.weight[branch].shape
                weight, bias, mean, var = _nothing(shape, factor, eps)
                if names[key] is not None:
                    weight, bias = (take(names[key], k, shape) for k in ("weight", "bias"))
                    mean, var = (take(names[key], k, shape) for k in ("running_mean", "running_var"))
                module.weight[branch].copy_(weight * factor / own)
                module.bias[branch].copy_(bias)
                module.running_mean[branch].copy_(mean)
                module.running_var[branch].copy_(var + (eps - module.eps))
    left = {name for name in state if not name.endswith("num_batches_tracked")} - used
    if left:
        raise ValueError(f"the checkpoint has layers that names does not mention: {_prefixes(left)}")


def _nothing(shape: torch.Size, factor: float, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return weight, bias, mean and variance of a normalisation that changes nothing."""
    one, zero = torch.ones(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    return one / factor, zero, zero, one - eps


def _prefixes(names: Iterable[str]) -> str:
    return ", ".join(sorted({name.rpartition(".")[0] for name in names}))
