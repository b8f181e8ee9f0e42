"""Training of a part: the head learns, the body before it stays what it is."""

from torch import nn

from rheobase.recipes import Recipe


def head_of(network: nn.Module) -> str:
    """The name of the head: `head` where a network has one, or else the last layer with parameters that it owns."""
    owners = [name for name, module in network.named_modules() if any(True for _ in module.parameters(recurse=False))]
    if not owners:
        raise ValueError("the network has no parameters, so it has no head")
    return "head" if any(name.split(".")[0] == "head" for name in owners) else owners[-1]


def freeze(network: nn.Module, recipe: Recipe) -> None:
    """Let only those parameters have gradients that the recipe trains."""
    if recipe.freeze == "body":
        head = {id(p) for p in network.get_submodule(head_of(network)).parameters()}
        for p in network.parameters():
            if id(p) not in head:
                p.requires_grad_(False)


def train_mode(network: nn.Module, recipe: Recipe) -> None:
    """Put the network into training mode; a body that is frozen evaluates: its running statistics count, and stay."""
    network.train(recipe.freeze == "none")
    if recipe.freeze == "body":
        network.get_submodule(head_of(network)).train()
