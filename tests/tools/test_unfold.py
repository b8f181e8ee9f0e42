"""A folded network becomes one that can be trained again, and is the same one."""

from itertools import islice

import torch

from rheobase import recipes
from rheobase.data import load
from rheobase.data.feed import Feed
from rheobase.deploy.agreement import agreement, record
from rheobase.deploy.folding import fold
from rheobase.models import build
from rheobase.nn import somas
from tests.deploy.networks import randomise
from tools.unfold import unfold


def test_unfolding_undoes_folding() -> None:
    recipe = recipes.get("demo").changed(["batch_size=20"])
    feed = Feed(load("digits"), recipe, torch.device("cpu"), torch.float64)
    batches = [x for x, *_ in islice(feed.training(0), 2)]
    for name in ("resnet8", "plain5"):
        options = {"num_classes": 10, "in_channels": 1, "image_size": 8, "v_th": 0.7}
        network = fold(randomise(build(name, **options), 8).double())
        model = build(name, **options).double()
        unfold(network, model, batches, 3)
        expected, found = (record(n.eval(), batches[0], 3) for n in (network, fold(model)))
        assert not any(agreement(expected, found).layers.values())
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-9, atol=1e-9)

        measured = {path: soma.running_var.clone() for path, soma in somas(model).items()}
        model.train()(torch.cat(batches), 3)  # with moments of the batch, which are the running ones of the same images
        for path, soma in somas(model).items():
            torch.testing.assert_close(soma.running_var, measured[path], rtol=1e-9, atol=1e-12)
