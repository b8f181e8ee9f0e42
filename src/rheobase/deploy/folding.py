"""Batchnorm-scale-fusion (Eq. 9-10): fold tdBN into the synapses, so that only synapses and bare LIF neurons remain.

The wiring comes from tracing `forward`, so users' own blocks fold as well. `branches` has the equations. The first
branch of a soma takes the sum of the biases of all branches.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.deploy.branches import Branch, Value, normalisation, without_identities
from rheobase.deploy.network import INPUT, Network, node_name
from rheobase.deploy.nodes import LIF
from rheobase.nn import AvgPool2d, Conv2d, ReferenceSoma, ReluSoma, Soma, TdBN, as_sequence

LAYERS = (nn.Conv2d, nn.Linear, nn.AvgPool2d, nn.Identity, nn.Dropout, nn.Dropout2d, TdBN)
ADDITIONS, IN_PLACE = (operator.add, torch.add, "add"), (operator.iadd, "add_")
SPACE = [[list(axes)] for axes in ((-2, -1), (-1, -2), (3, 4), (4, 3))]  # height and width of a sequence


def fold(model: nn.Module, neurons: Callable[[str, Soma], LIF] | None = None) -> Network:
    """Return the network of synapses and LIF neurons that fires the same spikes as `model` in evaluation mode.

    `model` is any network of synapses and somas that reads a sequence [T, N, C, H, W], or turns its input into one with
    `nn.as_sequence`. `neurons` makes the neurons from the path of a soma and the soma; `rheobase.convert` has its own.
    """
    graph = _Graph(neurons or same_neurons)
    graph.result(graph.follow(model, (INPUT,)))
    return Network(graph.nodes, graph.inputs).eval()


class _Proxy(fx.Proxy):
    """Distinguishes a += b, which changes a for its other readers too, from a + b."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class _Tracer(fx.Tracer):
    """Traces through modules that consist of other modules or of operations. Layers stay whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, LAYERS) or super().is_leaf_module(m, module_qualified_name):
            return True
        return not any(m.children()) and any(True for _ in m.parameters())

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def place(self) -> str:
        """Return the path of the innermost module that is being traced."""
        return next(reversed(self.module_stack), "")


@dataclass
class _Graph:
    neurons: Callable[[str, Soma], LIF]
    nodes: dict[str, nn.Module] = field(default_factory=dict)
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    made: dict[Branch, str] = field(default_factory=dict)  # branches that are nodes

    def follow(self, model: nn.Module, x: Value) -> Value:
        """Add the layers of `model` with input x. Return its output."""
        tracer = _Tracer()
        try:
            trace = tracer.trace(model)
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"fold: cannot follow {_where(model, tracer.place())}: {reason}") from error
        values: dict[fx.Node, Value] = {}
        inputs = 0
        for step in trace.nodes:
            named = (*step.args, *step.kwargs.values())
            args = [values[arg] for arg in named if isinstance(arg, fx.Node) and arg in values]
            path = next(reversed(step.meta.get("nn_module_stack", {})), "")
            inside = f"{path}." if path else ""
            if step.op == "placeholder":
                inputs += 1
                if inputs == 2:  # the number of timesteps: a deployed network gets it at every call
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
                values[step] = self.flattened(inside, args[0])
            elif step.op == "call_method" and step.target == "mean" and _arguments(step) in SPACE:
                pooled = self.add(f"{inside}pool", nn.AdaptiveAvgPool2d(1), *self.read(args[0]))
                values[step] = self.flattened(inside, (pooled,))
            elif _adds(step, model) and len(args) == 2:
                values[step] = total = without_identities(args[0]) + without_identities(args[1])
                if len(set(total)) < len(total):
                    raise ValueError(
                        f"fold: '{step.name}' in {_where(model, path)} adds the same value twice; use a synapse that "
                        "doubles it"
                    )
            else:
                raise ValueError(f"fold: cannot map the operation '{step.name}' in {_where(model, path)}")
        raise ValueError(f"fold: {_where(model, '')} returns nothing")

    def layer(self, path: str, module: nn.Module, args: list[Value]) -> Value:
        if isinstance(module, TdBN) and len(args) != module.branches:
            raise ValueError(f"fold: {path} expects {module.branches} branches, got {len(args)}")
        if isinstance(module, Soma):
            return (self.soma(path, module, args),)
        if isinstance(module, nn.Dropout | nn.Dropout2d):  # does nothing in evaluation
            return args[0]
        if isinstance(module, LAYERS) and not _computes_as_torch(module):
            raise ValueError(
                f"fold: {path} ({type(module).__name__}) overrides the computation of its base class, which a deployed "
                "network does not support; use the layers of rheobase.nn and torch.nn unchanged"
            )
        if isinstance(module, TdBN):
            return tuple(self.normalised(path, module, args))
        if isinstance(module, nn.Conv2d) and (module.padding_mode != "zeros" or isinstance(module.padding, str)):
            raise ValueError(
                f"fold: cannot map the padding of {path} ({type(module).__name__}); expected zeros, as a number of "
                "pixels"
            )
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            return (Branch(path, module, self.read(args[0])),)
        if isinstance(module, nn.Identity):  # it may become a synapse, under its own name
            nodes = tuple(term for term in args[0] if isinstance(term, str))
            return (Branch(path, module, nodes),) if len(nodes) == len(args[0]) else args[0]
        if isinstance(module, nn.AvgPool2d) and not module.ceil_mode and module.count_include_pad:
            window = (module.kernel_size, module.stride, module.padding)
            pool = nn.AvgPool2d(*window, divisor_override=module.divisor_override)
            return (self.add(path, pool, *self.read(args[0])),)
        raise ValueError(
            f"fold: cannot map {path} ({type(module).__name__}); expected Conv2d, Linear, AvgPool2d, Identity, TdBN or "
            "Soma"
        )

    def soma(self, path: str, soma: Soma, args: list[Value]) -> str:
        neurons = self.neurons(path, soma)
        if soma.normalize:
            branches = self.normalised(path, soma, args)
            biases = [bias for branch in branches if (bias := branch.bias()) is not None]
            bias = torch.stack(biases).sum(0)
            sources = tuple(
                self.add(branch.name, branch.synapse(bias if i == 0 else None), *branch.sources)
                for i, branch in enumerate(branches)
            )
        else:
            sources = self.read(tuple(term for arg in args for term in arg))
        return self.add(path, neurons, *sources)

    def normalised(self, path: str, norm: TdBN, args: list[Value]) -> list[Branch]:
        """Return the terms of all branches after tdBN. All nodes among the terms of a branch share one scale."""
        branches = []
        for arg, (factor, shift) in zip(args, normalisation(norm), strict=True):
            nodes = tuple(term for term in arg if isinstance(term, str))
            terms = [term for term in arg if isinstance(term, Branch)]
            if nodes:
                terms.append(Branch(f"{path}.scale", nn.Identity(), nodes))
            for i, term in enumerate(terms):
                branches.append(term.scaled(factor, shift if i == 0 else None, norm.weight.dtype))
        return branches

    def flattened(self, inside: str, value: Value) -> Value:
        """Flatten each term by itself, so that the terms stay separate."""
        return tuple(self.add(f"{inside}flatten", nn.Flatten(), name) for name in self.read(value))

    def read(self, value: Value) -> tuple[str, ...]:
        """Return the names of the nodes that compute its terms."""
        names: list[str] = []
        for term in without_identities(value):
            if isinstance(term, Branch) and term not in self.made:
                self.made[term] = self.add(term.name, term.synapse(term.bias()), *term.sources)
            names.append(self.made[term] if isinstance(term, Branch) else term)
        return tuple(names)

    def result(self, value: Value) -> None:
        """Make `value` the output of the network, and so its last node."""
        names = self.read(value)
        if len(names) > 1 or names[0] == INPUT:
            raise ValueError(f"fold: expected one layer that computes the logits, got {', '.join(names)}")
        self.nodes[names[0]] = self.nodes.pop(names[0])

    def add(self, path: str, node: nn.Module, *sources: str) -> str:
        name = node_name(path)
        while name in self.nodes:  # a synapse that serves two somas becomes two
            name += "_"
        self.nodes[name], self.inputs[name] = node, sources
        return name


def same_neurons(path: str, soma: Soma) -> LIF:
    """Return the neurons of a soma, without normalisation."""
    if isinstance(soma, ReluSoma):
        raise ValueError(
            f"fold: the neurons of {path} ({type(soma).__name__}) do not spike; make a spiking network of it "
            "with `rheobase convert`, and give that file"
        )
    if not fires_as_lif(soma):
        raise ValueError(
            f"fold: the neurons of {path} ({type(soma).__name__}) have dynamics or a normalisation of their own, which "
            "a deployed network does not support; use Soma (in a recipe, normalisation=tdbn), or change only the "
            "method spike of a ReferenceSoma"
        )
    decay = soma.present_decay()
    if isinstance(decay, Tensor):
        decay = decay.detach().clone() if decay.numel() > 1 else decay.item()
    v_th = torch.full_like(soma.bias[0].detach(), float(soma.v_th))
    return LIF(decay, v_th, reset=soma.reset)


def fires_as_lif(soma: Soma) -> bool:
    """Return whether a soma has the forward pass of `Soma`, whatever its surrogate."""
    kind = type(soma)
    base = ReferenceSoma if isinstance(soma, ReferenceSoma) else Soma
    steps = ("forward", "fire", "current", "_fire", "_moments", "_batch_moments", "deviation")
    if any(getattr(kind, name, None) is not getattr(base, name, None) for name in steps):
        return False
    if isinstance(soma.v_th, Tensor) and soma.v_th.numel() > 1:
        return False  # a deployed layer takes one threshold from its soma
    if not isinstance(soma, ReferenceSoma):
        return True
    v_th = float(soma.v_th)
    u = v_th * torch.linspace(-2, 4, 25, device=soma.bias.device)
    with torch.no_grad():
        return torch.equal(soma.spike(u).bool(), u > v_th)


def _computes_as_torch(layer: nn.Module) -> bool:
    """Return whether a layer computes what its base class does. A subclass could compute anything."""
    kind = type(layer)
    for ours in (Conv2d, AvgPool2d):
        if isinstance(layer, ours):
            return kind.forward is ours.forward and getattr(kind, "convolve", None) is getattr(ours, "convolve", None)
    if isinstance(layer, TdBN):
        steps = ("forward", "current", "_each_normalised", "deviation")
        return all(getattr(kind, name) is getattr(TdBN, name) for name in steps)
    base = next(base for base in LAYERS if isinstance(layer, base))
    return kind.forward is base.forward


def _arguments(step: fx.Node) -> list[Any]:
    """Return the arguments of a method after its tensor, given by position or by name."""
    return [list(a) if isinstance(a, list | tuple) else a for a in (*step.args[1:], *step.kwargs.values())]


def _where(model: nn.Module, path: str) -> str:
    return f"{path or 'the network'} ({type(model.get_submodule(path)).__name__})"


def _adds(step: fx.Node, model: nn.Module) -> bool:
    """Return whether the step only adds two values. An addition in place must not change a value with other readers."""
    if step.op not in ("call_function", "call_method") or step.kwargs:
        return False
    if step.target not in IN_PLACE:
        return step.target in ADDITIONS
    changed = step.args[0]
    if not isinstance(changed, fx.Node) or len(changed.users) > 1:
        return False
    if changed.op == "call_module":  # these return their input itself
        passing_on = (nn.Identity, nn.Dropout, nn.Dropout2d)
        return not isinstance(model.get_submodule(str(changed.target)), passing_on)
    return _adds(changed, model)
