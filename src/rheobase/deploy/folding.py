"""Batchnorm-scale-fusion (Eq. 9-10): tdBN disappears into every synapse, and bare LIF neurons remain.

    W' = weight * alpha * v_th * W / sqrt(var + eps)
    B' = weight * alpha * v_th * (B - mean) / sqrt(var + eps) + bias

An identity shortcut becomes a synapse too: a scale per channel. The biases of a soma's branches are summed into its
first one. The wiring is read from the blocks' own `forward`, so blocks of other shapes fold as well.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.deploy.convolution import convolution
from rheobase.deploy.network import INPUT, LIF, Network, Scale, linear, node_name
from rheobase.nn import AvgPool2d, Conv2d, ReferenceSoma, Soma, as_sequence

_Affine = tuple[Tensor, Tensor]  # factor and shift per channel
LAYERS = (nn.Conv2d, nn.Linear, nn.AvgPool2d, nn.Identity, nn.Dropout, nn.Dropout2d, Soma)
SPACE = [[list(axes)] for axes in ((-2, -1), (-1, -2), (3, 4), (4, 3))]  # height and width of a sequence


@dataclass(frozen=True)
class _Branch:
    """A synapse on its way to a soma, which decides its weights; or to anything else, which leaves them alone."""

    name: str
    module: nn.Module  # Conv2d, Linear or Identity
    source: str


def fold(model: nn.Module) -> Network:
    """The network of synapses and LIF neurons that fires the same spikes as `model` in evaluation mode.

    `model` is any network of synapses and somas that reads a sequence [T, N, C, H, W], or makes its input one by
    `nn.as_sequence`.
    """
    graph = _Graph()
    graph.node(graph.follow(model, INPUT))
    return Network(graph.nodes, graph.inputs).eval()


class _Tracer(fx.Tracer):
    """Follows data through modules that are made of others, or of operations; layers stay whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, LAYERS) or super().is_leaf_module(m, module_qualified_name):
            return True
        return not any(m.children()) and any(True for _ in m.parameters())

    def place(self) -> str:
        """The innermost module that is being followed."""
        return next(reversed(self.module_stack), "")


@dataclass
class _Graph:
    nodes: dict[str, nn.Module] = field(default_factory=dict)
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def follow(self, model: nn.Module, x: str) -> str | _Branch:
        """Add the layers of `model`, which reads x; return what it yields."""
        tracer = _Tracer()
        try:
            trace = tracer.trace(model)
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"fold: cannot follow {_where(model, tracer.place())}: {reason}") from error
        values: dict[fx.Node, str | _Branch] = {}
        inputs = 0
        for step in trace.nodes:
            named = (*step.args, *step.kwargs.values())
            args = [values[arg] for arg in named if isinstance(arg, fx.Node) and arg in values]
            path = next(reversed(step.meta.get("nn_module_stack", {})), "")
            inside = f"{path}." if path else ""
            if step.op == "placeholder":
                inputs += 1
                if inputs == 2:  # how often the input is shown: a deployed network is told anew
                    continue
                if inputs > 2:
                    raise ValueError(f"fold: {_where(model, path)} takes more than one input")
                values[step] = x
            elif step.op == "output":
                return values[step.args[0]]
            elif step.op == "call_function" and step.target is as_sequence:
                values[step] = args[0]
            elif step.op == "call_module":
                values[step] = self.layer(str(step.target), model.get_submodule(str(step.target)), args)
            elif step.op == "call_method" and step.target == "flatten" and _arguments(step) == [2]:
                values[step] = self.add(f"{inside}flatten", nn.Flatten(), self.node(args[0]))
            elif step.op == "call_method" and step.target == "mean" and _arguments(step) in SPACE:
                pooled = self.add(f"{inside}pool", nn.AdaptiveAvgPool2d(1), self.node(args[0]))
                values[step] = self.add(f"{inside}flatten", nn.Flatten(), pooled)
            else:
                raise ValueError(f"fold: cannot map the operation '{step.name}' in {_where(model, path)}")
        raise ValueError(f"fold: {_where(model, '')} yields nothing")

    def layer(self, path: str, module: nn.Module, args: list[str | _Branch]) -> str | _Branch:
        if isinstance(module, Soma):
            branches = [a if isinstance(a, _Branch) else _Branch(f"{path}.scale", nn.Identity(), a) for a in args]
            return self.soma(path, module, branches)
        if isinstance(module, nn.Dropout | nn.Dropout2d):  # which does nothing in evaluation
            return args[0]
        if isinstance(module, LAYERS) and not _computes_as_torch(module):
            raise ValueError(
                f"fold: {path} ({type(module).__name__}) computes in a way of its own, which a deployed network does "
                "not know; use the layers of rheobase.nn and torch.nn as they are"
            )
        if isinstance(module, nn.Conv2d) and (module.padding_mode != "zeros" or isinstance(module.padding, str)):
            raise ValueError(
                f"fold: cannot map the padding of {path} ({type(module).__name__}); expected zeros, counted"
            )
        if isinstance(module, (nn.Conv2d, nn.Linear, nn.Identity)):
            return _Branch(path, module, self.node(args[0]))
        if isinstance(module, nn.AvgPool2d) and not module.ceil_mode and module.count_include_pad:
            window = (module.kernel_size, module.stride, module.padding)
            pool = nn.AvgPool2d(*window, divisor_override=module.divisor_override)
            return self.add(path, pool, self.node(args[0]))
        raise ValueError(
            f"fold: cannot map {path} ({type(module).__name__}); expected Conv2d, Linear, AvgPool2d, Identity or Soma"
        )

    def soma(self, path: str, soma: nn.Module, branches: list[_Branch]) -> str:
        if not isinstance(soma, Soma) or not fires_as_lif(soma):
            raise ValueError(
                f"fold: the neurons of {path} ({type(soma).__name__}) have dynamics of their own, which a deployed "
                "network does not know; use Soma, or change only the spike of a ReferenceSoma"
            )
        if soma.reset != "hard":
            raise ValueError(
                f"fold: the neurons of {path} have a {soma.reset} reset, which a deployed network does not know; "
                "train with reset=hard"
            )
        decay = soma.present_decay()
        if isinstance(decay, Tensor) and decay.numel() > 1:
            raise ValueError(
                f"fold: the neurons of {path} have a decay for every channel, and a deployed layer has one; train with "
                "learn_decay=layer"
            )
        if len(branches) != soma.branches:
            raise ValueError(f"fold: {path} expects {soma.branches} branches, got {len(branches)}")
        affine = _normalisation(soma)
        synapses = [_synapse(branch.module, a) for branch, a in zip(branches, affine, strict=True)]
        bias = torch.stack([b for _, b in synapses]).sum(0)
        names = []
        for i, (branch, (weight, _)) in enumerate(zip(branches, synapses, strict=True)):
            node = _with_parameters(branch.module, weight, bias if i == 0 else None, soma.weight.dtype)
            names.append(self.add(branch.name, node, branch.source))
        v_th = torch.full_like(soma.running_mean[0], float(soma.v_th))
        return self.add(path, LIF(float(decay.detach() if isinstance(decay, Tensor) else decay), v_th), *names)

    def node(self, value: str | _Branch) -> str:
        """The name of the node that yields `value`; a branch that meets no soma keeps its weights."""
        if isinstance(value, str):
            return value
        if isinstance(value.module, nn.Identity):
            return value.source
        weight, bias = value.module.weight, value.module.bias
        assert isinstance(weight, Tensor)
        assert bias is None or isinstance(bias, Tensor)
        return self.add(value.name, _with_parameters(value.module, weight, bias, weight.dtype), value.source)

    def add(self, path: str, node: nn.Module, *sources: str) -> str:
        name = node_name(path)
        while name in self.nodes:  # a synapse that serves two somas becomes two
            name += "_"
        self.nodes[name], self.inputs[name] = node, sources
        return name


def fires_as_lif(soma: Soma) -> bool:
    """Whether the forward pass of a soma is that of `Soma`, whatever its surrogate."""
    kind = type(soma)
    base = ReferenceSoma if isinstance(soma, ReferenceSoma) else Soma
    steps = ("forward", "fire", "current", "_fire", "_moments", "_batch_moments")
    if any(getattr(kind, name, None) is not getattr(base, name, None) for name in steps):
        return False
    if isinstance(soma.v_th, Tensor) and soma.v_th.numel() > 1:
        return False  # a deployed layer has one
    if not isinstance(soma, ReferenceSoma):
        return True
    v_th = float(soma.v_th)
    u = v_th * torch.linspace(-2, 4, 25, device=soma.weight.device)
    with torch.no_grad():
        return torch.equal(soma.spike(u).bool(), u > v_th)


def _computes_as_torch(layer: nn.Module) -> bool:
    """Whether a layer is what its base class is: a subclass may compute anything."""
    kind = type(layer)
    for ours in (Conv2d, AvgPool2d):
        if isinstance(layer, ours):
            return kind.forward is ours.forward and getattr(kind, "convolve", None) is getattr(ours, "convolve", None)
    base = next(base for base in LAYERS if isinstance(layer, base))
    return kind.forward is base.forward


def _arguments(step: fx.Node) -> list[Any]:
    """Of a method, without its tensor, by position or by name."""
    return [list(a) if isinstance(a, list | tuple) else a for a in (*step.args[1:], *step.kwargs.values())]


def _where(model: nn.Module, path: str) -> str:
    return f"{path or 'the network'} ({type(model.get_submodule(path)).__name__})"


def _normalisation(soma: Soma) -> list[_Affine]:
    """tdBN of every branch as factor * x + shift, in double precision."""
    weight, bias, mean, var = (
        p.detach().double() for p in (soma.weight, soma.bias, soma.running_mean, soma.running_var)
    )
    factor = weight * soma.branches**-0.5 * soma.v_th / torch.sqrt(var + soma.eps)
    return list(zip(factor.unbind(), (bias - factor * mean).unbind(), strict=True))


def _synapse(module: nn.Module, affine: _Affine) -> _Affine:
    """Weight and bias of the synapse followed by its normalisation, in double precision."""
    factor, shift = affine
    if isinstance(module, nn.Identity):
        return factor, shift
    assert isinstance(module, (nn.Conv2d, nn.Linear))
    weight = module.weight.detach().double()
    bias = 0 if module.bias is None else module.bias.detach().double()
    return weight * factor.view(-1, *[1] * (weight.ndim - 1)), factor * bias + shift


def _with_parameters(module: nn.Module, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> nn.Module:
    """A synapse of the kind of `module` that acts on a single step [N, C, ...], with these parameters."""
    weight = weight.detach().to(dtype, copy=True)
    bias = None if bias is None else bias.detach().to(dtype, copy=True)
    if isinstance(module, nn.Conv2d):
        assert not isinstance(module.padding, str)
        return convolution(weight, bias, module.stride, module.padding, module.dilation, module.groups)
    return linear(weight, bias) if isinstance(module, nn.Linear) else Scale(weight, bias)
