"""Train a part of a network: the head learns, and the body before it stays as it is."""

from torch import nn

from rheobase.recipes import Recipe


def head_of(network: nn.Module) -> str:
    """Return the name of the head: `head` if the network has one, otherwise the last layer with its own parameters."""
    owners = [name for name, module in network.named_modules() if any(True for _ in module.parameters(recurse=False))]
    if not owners:
        raise ValueError("the network has no parameters, so it has no head")
    return "head" if any(name.split(".")[0] == "head" for name in owners) else owners[-1]


def freeze(network: nn.Module, recipe: Recipe) -> None:
    """Disable the gradients of all parameters that the recipe does not train."""
    if recipe.freeze == "body":
        head = {id(p) for p in network.get_submodule(head_of(network)).parameters()}
        for p in network.parameters():
            if id(p) not in head:
                p.requires_grad_(False)


def train_mode(network: nn.Module, recipe: Recipe) -> None:
    """Put the network into training mode. A frozen body stays in evaluation mode, with fixed running statistics."""
    network.train(recipe.freeze == "none")
    if recipe.freeze == "body":
        network.get_submodule(head_of(network)).train()
