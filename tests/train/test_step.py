from math import cos, pi

import pytest
import torch
from torch import Tensor, nn

from rheobase import recipes
from rheobase.functional import readout
from rheobase.models import resnet8
from rheobase.recipes import Recipe
from rheobase.train.optimizers import make_optimizer, set_learning_rate
from rheobase.train.step import learning_rate, loss_of, make_step, update_average

CPU = torch.device("cpu")


def recipe(*settings: str) -> Recipe:
    return recipes.get("demo").changed(["loss=mean", "label_smoothing=0", *settings])


def test_step_schedule() -> None:
    r = recipe("schedule=step", "step_epochs=3", "epochs=9", "lr=0.5")
    rates = [learning_rate(r, epoch) for epoch in (0, 2.9, 3, 5.9, 6, 8.9)]
    assert rates == pytest.approx([0.5, 0.5, 0.05, 0.05, 0.005, 0.005])


def test_step_schedule_with_warmup() -> None:
    r = recipe("schedule=step", "step_epochs=3", "epochs=9", "lr=0.5", "warmup_epochs=2")
    assert [learning_rate(r, epoch) for epoch in (0, 0.5, 1, 2, 3)] == pytest.approx([0, 0.125, 0.25, 0.5, 0.05])


def test_cosine_schedule_with_warmup() -> None:
    r = recipe("epochs=8", "lr=0.4", "warmup_epochs=2")
    expected = [0.0, 0.5 * 0.2 * (1 + cos(pi / 8)), 0.2 * (1 + cos(pi / 4)), 0.2, 0.0]
    assert [learning_rate(r, epoch) for epoch in (0, 1, 2, 4, 8)] == pytest.approx(expected)


def test_a_shared_weight_moves_once() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    network[1].weight = network[0].weight
    decayed, others = make_optimizer(network, recipe(), CPU).param_groups
    assert (len(decayed["params"]), len(others["params"])) == (1, 2)


def test_weight_decay_spares_tdbn_and_biases() -> None:
    network = resnet8()
    decayed, others = make_optimizer(network, recipe("weight_decay=0.01"), CPU).param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
    names = {id(p): name for name, p in network.named_parameters()}
    assert all("soma" not in names[id(p)] and names[id(p)].endswith("weight") for p in decayed["params"])
    assert all("soma" in names[id(p)] or names[id(p)] == "head.decode.bias" for p in others["params"])
    assert len(decayed["params"]) + len(others["params"]) == len(names)


def test_loss_of_the_mean_and_of_every_step() -> None:
    logits, labels = torch.randn(3, 5, 4), torch.tensor([0, 3, 1, 1, 2])
    mean, steps = loss_of(logits, labels, recipe()), loss_of(logits, labels, recipe("loss=steps"))
    log_p = logits.mean(0).log_softmax(1)
    torch.testing.assert_close(mean, -log_p[range(5), labels].mean())
    each = [-step.log_softmax(1)[range(5), labels].mean() for step in logits]
    torch.testing.assert_close(steps, torch.stack(each).mean())
    smooth = loss_of(logits, labels, recipe("label_smoothing=0.2"))
    torch.testing.assert_close(smooth, 0.8 * mean - 0.2 * log_p.mean())


def literal_sgd(network: nn.Module, grads: dict[str, Tensor], velocity: dict[str, Tensor], r: Recipe) -> None:
    for name, p in network.named_parameters():
        spared = "soma" in name or name.endswith("bias")
        g = grads[name] + (0 if spared else r.weight_decay) * p
        velocity[name] = r.momentum * velocity.get(name, 0) + g
        with torch.no_grad():
            p -= r.lr * (g + r.momentum * velocity[name] if r.nesterov else velocity[name])


@pytest.mark.parametrize("nesterov", ["true", "false"])
def test_two_steps_equal_a_literal_optimiser(nesterov: str) -> None:
    r = recipe(f"nesterov={nesterov}", "weight_decay=0.01", "lr=0.05")
    network, literal = resnet8().double(), resnet8().double()
    literal.load_state_dict(network.state_dict())
    optimizer = make_optimizer(network, r, CPU)
    step = make_step(network, optimizer, torch.amp.GradScaler("cpu", enabled=False), r, 3)
    velocity: dict[str, Tensor] = {}
    for _ in range(2):
        images, labels = torch.randn(5, 1, 8, 8, dtype=torch.float64), torch.randint(0, 10, (5,))
        set_learning_rate(optimizer, r.lr)
        loss, correct, norm = step(images, labels)
        logits = literal(images, 3)
        expected = nn.functional.cross_entropy(readout(logits), labels)
        grads = dict(zip([n for n, _ in literal.named_parameters()],
                         torch.autograd.grad(expected, list(literal.parameters())), strict=True))  # fmt: skip
        literal_sgd(literal, grads, velocity, r)
        torch.testing.assert_close(loss, 5 * expected.detach())
        assert correct == (logits.sum(0).argmax(1) == labels).sum()
        torch.testing.assert_close(norm, torch.cat([g.flatten() for g in grads.values()]).norm())
    for (name, p), q in zip(network.named_parameters(), literal.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12, msg=name)


def test_share_scales_the_gradient() -> None:
    r = recipe("momentum=0", "nesterov=false", "weight_decay=0")
    images, labels = torch.randn(4, 1, 8, 8), torch.randint(0, 10, (4,))
    start, moves = resnet8(), []
    for share in (1.0, 2.0):
        network = resnet8()
        network.load_state_dict(start.state_dict())
        step = make_step(network, make_optimizer(network, r, CPU), torch.amp.GradScaler("cpu", enabled=False), r, 2)
        step(images, labels, share)
        moves.append(network.head.decode.bias - start.head.decode.bias)
    torch.testing.assert_close(moves[1], 2 * moves[0])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_steps_are_finite_and_move_float32_weights(precision: str) -> None:
    r = recipe(f"precision={precision}")
    network = resnet8()
    before = network.stem.weight.clone()
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    step = make_step(network, make_optimizer(network, r, CPU), scaler, r, 2)
    outputs = step(torch.randn(4, 1, 8, 8), torch.randint(0, 10, (4,)))
    assert all(torch.isfinite(o).all() for o in outputs)
    assert network.stem.weight.dtype == torch.float32
    assert not torch.equal(network.stem.weight, before)


def test_fp16_states_the_norm_of_the_gradients_without_their_scale() -> None:
    r, start, norms = recipe("precision=fp16"), resnet8(), []
    images, labels = torch.randn(4, 1, 8, 8), torch.randint(0, 10, (4,))
    for scale in (2.0**6, 2.0**10):
        network = resnet8()
        network.load_state_dict(start.state_dict())
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        *_, norm = make_step(network, make_optimizer(network, r, CPU), scaler, r, 2)(images, labels)
        norms.append(norm)
    torch.testing.assert_close(norms[1], norms[0], rtol=1e-2, atol=0)  # a small scale loses the smallest gradients


def test_a_step_that_overflows_changes_no_weight_and_has_no_norm() -> None:
    r, network = recipe("precision=fp16"), resnet8()
    before = [p.detach().clone() for p in network.parameters()]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    step = make_step(network, make_optimizer(network, r, CPU), scaler, r, 2)
    loss, _, norm = step(torch.randn(4, 1, 8, 8), torch.randint(0, 10, (4,)))
    assert loss.isfinite()
    assert norm == 0
    assert all(map(torch.equal, network.parameters(), before))


def test_a_step_of_fp16_can_be_repeated_after_it_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    r, network = recipe("precision=fp16"), resnet8()
    optimizer = make_optimizer(network, r, CPU)
    step = make_step(network, optimizer, torch.amp.GradScaler("cpu"), r, 2)
    batch = torch.randn(4, 1, 8, 8), torch.randint(0, 10, (4,))
    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.utils, "get_total_norm", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            step(*batch)
    assert step(*batch)[0].isfinite()


def test_average_follows_weights_and_statistics() -> None:
    average, network = resnet8(), resnet8()
    network.soma.running_mean.fill_(3.0)
    before = average.stem.weight.clone()
    update_average(average, network, 0.75)
    torch.testing.assert_close(average.stem.weight, 0.75 * before + 0.25 * network.stem.weight)
    torch.testing.assert_close(average.soma.running_mean, torch.full_like(average.soma.running_mean, 0.75))


def test_whole_numbers_in_a_network_of_yours_are_not_averaged() -> None:
    average, network = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    network(torch.randn(2, 3, 4, 5))
    update_average(average, network, 0.75)
    assert average.num_batches_tracked == 1
    torch.testing.assert_close(average.running_var, 0.75 + 0.25 * network.running_var)


def test_an_overflow_in_the_first_step_leaves_no_garbage() -> None:
    recipe = recipes.get("demo").changed(["precision=fp16"])
    network = nn.Linear(3, 2)
    before = network.weight.detach().clone()
    optimizer = make_optimizer(network, recipe, torch.device("cpu"))
    scaler = torch.amp.GradScaler("cpu")
    for value in (torch.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale((network.weight * value).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    step = recipe.lr * (1 + recipe.momentum) * (1 + recipe.weight_decay * before)
    torch.testing.assert_close(before - network.weight.detach(), step)
