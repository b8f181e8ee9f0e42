"""Every backend of the fused soma against the law: spikes, moments and the gradients of all inputs.

Whole results are compared in float64. In less precision one spike that flips by rounding changes what follows, so
neurons whose potential comes near a decision (the threshold, the edges of the surrogate's window) are left out.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rheobase import functional, kernels
from rheobase.kernels import cpu, fused
from rheobase.models import build

SETTINGS: dict[str, float] = {"decay": 0.3, "v_th": 0.6, "width": 0.9, "eps": 1e-4}
SHAPES = [  # T, N, C, and space where there is any
    (1, 2, 3, 5, 4),
    (2, 1, 17, 3, 5),
    (4, 3, 500),
    (4, 3, 500, 1, 2),
    (6, 2, 17, 1, 1),
    (7, 1, 3, 5, 2),
    (40, 2, 3, 4, 5),
]
NEAR = 1e-5  # this close to a decision, float32 may take the other side


@pytest.fixture(params=["cpu", "cpu in small blocks", "triton"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name, _, variant = request.param.partition(" ")
    if variant:
        monkeypatch.setattr(cpu, "_GRAIN", 29)
        monkeypatch.setattr(cpu, "_CACHED", 29)
    with torch.device(request.getfixturevalue("triton_device") if name == "triton" else "cpu"):
        yield name


def contiguous(x: Tensor) -> Tensor:
    return x.contiguous()


def channels_last(x: Tensor) -> Tensor:
    return x.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, x.shape[:2])


def every_other(x: Tensor) -> Tensor:
    """Not dense: with gaps in the batch and in the last axis."""
    return x.repeat_interleave(2, dim=1).repeat_interleave(2, dim=-1)[:, ::2, ..., ::2]


def width_first(x: Tensor) -> Tensor:
    """Dense, but in a memory order that no convolution makes."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


class Case:
    """Random branches of one shape with parameters and an upstream gradient; `static` branches repeat one step."""

    def __init__(
        self,
        shape: tuple[int, ...],
        layouts: list[Callable[[Tensor], Tensor]],
        *,
        static: tuple[bool, ...] = (),
        dtype: torch.dtype = torch.float64,
        mean: float = 0.0,
    ) -> None:
        n, channels = len(layouts), shape[2]
        self.steps = shape[0]
        self.static = static or (False,) * n
        wide = torch.promote_types(dtype, torch.float32)
        self.leaves = [
            layout((torch.randn(1 if still else self.steps, *shape[1:], dtype=wide) + mean).to(dtype))
            for layout, still in zip(layouts, self.static, strict=True)
        ]
        self.weight, self.bias = torch.randn(2, n, channels, dtype=wide).unbind()
        self.grad = layouts[-1](torch.randn(shape, dtype=wide).to(dtype))

    def xs(self, leaves: list[Tensor]) -> list[Tensor]:
        return [
            leaf.expand(self.steps, *leaf.shape[1:]) if still else leaf
            for leaf, still in zip(leaves, self.static, strict=True)
        ]

    def results(self, fire: Callable[..., Any], **options: Any) -> dict[str, Tensor]:
        leaves = [leaf.detach().requires_grad_() for leaf in self.leaves]
        weight, bias = self.weight.clone().requires_grad_(), self.bias.clone().requires_grad_()
        settings, learnt = SETTINGS | options, {}
        if isinstance(settings["decay"], Tensor):
            learnt["decay"] = settings["decay"] = settings["decay"].to(weight.dtype, copy=True).requires_grad_()
        spikes, (mean, var) = fire(self.xs(leaves), weight, bias, **settings)
        grads = torch.autograd.grad(spikes, [*leaves, weight, bias, *learnt.values()], self.grad)
        names = [*(f"x{i}" for i in range(len(leaves))), "weight", "bias", *learnt]
        return {"spikes": spikes, "mean": mean, "var": var} | dict(zip(names, grads, strict=True))

    def double(self) -> "Case":
        """The same values in float64."""
        twin = object.__new__(Case)
        twin.steps, twin.static = self.steps, self.static
        twin.leaves = [leaf.double() for leaf in self.leaves]
        twin.weight, twin.bias, twin.grad = self.weight.double(), self.bias.double(), self.grad.double()
        return twin

    def potentials(self, decay: float | Tensor = SETTINGS["decay"], reset: str = "hard") -> Tensor:
        """u before every reset, by the law."""
        xs, alpha, v_th = self.xs(self.leaves), len(self.leaves) ** -0.5, SETTINGS["v_th"]
        current = torch.zeros_like(xs[0])
        for x, weight, bias in zip(xs, self.weight, self.bias, strict=True):
            mean, var = functional.moments(x)
            current = current + functional.tdbn(
                x, weight, bias, alpha=alpha, v_th=v_th, mean=mean, var=var, eps=SETTINGS["eps"]
            )
        v, us = torch.zeros_like(current[0]), []
        factor = functional.decay_factor(decay, current)
        for x_t in current:
            us.append(factor * v + x_t)
            _, v = functional.lif_step(x_t, v, decay=factor, v_th=v_th, reset=reset)
        return torch.stack(us)


def assert_equal(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


def check(case: Case, backend: str, **options: Any) -> None:
    want = case.results(functional.fire, **options)
    assert 0 < want["spikes"].mean() < 1
    assert_equal(case.results(kernels.fire, backend=backend, **options), want)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("branches", [1, 2])
def test_equals_the_law_at_awkward_shapes(backend: str, shape: tuple[int, ...], branches: int) -> None:
    check(Case(shape, [contiguous] * branches), backend)


def decays(channels: int) -> Tensor:
    """One per channel, the first and the last at the ends of what is possible."""
    return torch.linspace(0, 1, channels, dtype=torch.float64)


@pytest.mark.parametrize("learnt", [False, True], ids=["number", "learnt"])
@pytest.mark.parametrize("reset_gradient", [True, False], ids=["through the reset", "detached"])
@pytest.mark.parametrize("reset", functional.RESETS)
@pytest.mark.parametrize("surrogate", functional.SURROGATES)
def test_every_neuron_equals_the_law(
    backend: str, surrogate: str, reset: str, reset_gradient: bool, learnt: bool
) -> None:
    case = Case((5, 2, 3, 4, 1), [channels_last])
    decay = decays(3) if learnt else 0.3
    check(case, backend, surrogate=surrogate, reset=reset, reset_gradient=reset_gradient, decay=decay)


NEURONS: list[dict[str, Any]] = [  # every choice once, and a decay that is learnt with all of them
    {"surrogate": "triangle", "reset": "soft", "reset_gradient": True},
    {"surrogate": "sigmoid", "reset": "hard", "reset_gradient": False},
    {"surrogate": "atan", "reset": "soft", "reset_gradient": False},
    {"surrogate": "rectangle", "reset": "hard", "reset_gradient": True},
]
each_neuron = pytest.mark.parametrize("neuron", NEURONS, ids=lambda neuron: neuron["surrogate"])


@each_neuron
@pytest.mark.parametrize("shape", [(19, 2, 3, 4, 5), (4, 3, 50), (2, 1, 17, 3, 5)], ids=str)
def test_learnt_decays_equal_the_law_at_awkward_shapes(
    backend: str, shape: tuple[int, ...], neuron: dict[str, Any]
) -> None:
    """Of 19 steps in segments of 7, the last one is incomplete."""
    check(Case(shape, [contiguous, contiguous]), backend, decay=decays(shape[2]), **neuron)


@each_neuron
@pytest.mark.parametrize("static", [(True,), (True, False)], ids=str)
def test_other_neurons_of_a_static_branch(backend: str, static: tuple[bool, ...], neuron: dict[str, Any]) -> None:
    case = Case((4, 3, 5, 6, 2), [channels_last] * len(static), static=static)
    mean = torch.randn(len(static), 5, dtype=torch.float64)
    check(case, backend, decay=decays(5), **neuron)
    check(case, backend, decay=decays(5), moments=(mean, 0.5 + torch.rand_like(mean)), **neuron)


def test_one_decay_for_all_channels(backend: str) -> None:
    case = Case((4, 3, 5, 6, 2), [channels_last, contiguous])
    for shape in ((), (1,)):
        check(case, backend, decay=torch.full(shape, 0.4, dtype=torch.float64))


@each_neuron
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_neurons_in_single_precision(backend: str, dtype: torch.dtype, neuron: dict[str, Any]) -> None:
    case = Case((4, 3, 5, 6, 2), [channels_last, channels_last], dtype=dtype, mean=0.7)
    assert_single_precision_equals_the_law(case, backend, decay=decays(5), **neuron)


@pytest.mark.parametrize(
    "layouts",
    [
        [channels_last],
        [channels_last, channels_last],
        [channels_last, contiguous],
        [contiguous, channels_last],
        [every_other],
        [every_other, channels_last],
        [channels_last, every_other],
        [width_first, contiguous],
    ],
    ids=lambda layouts: "-".join(layout.__name__ for layout in layouts),
)
def test_equals_the_law_in_every_memory_order(backend: str, layouts: list[Callable[[Tensor], Tensor]]) -> None:
    check(Case((4, 3, 17, 6, 5), layouts), backend)


@pytest.mark.parametrize("static", [(True,), (True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("layout", [contiguous, channels_last])
def test_a_static_branch_gets_the_gradient_of_all_steps(
    backend: str, static: tuple[bool, ...], layout: Callable[[Tensor], Tensor]
) -> None:
    check(Case((4, 3, 17, 6, 5), [layout] * len(static), static=static), backend)


@pytest.mark.parametrize("static", [(False,), (False, False), (True, False)], ids=str)
def test_given_moments_are_constants(backend: str, static: tuple[bool, ...]) -> None:
    case = Case((4, 3, 17, 6, 5), [channels_last] * len(static), static=static)
    mean = torch.randn(len(static), 17, dtype=torch.float64)
    check(case, backend, moments=(mean, 0.5 + torch.rand_like(mean)))


@pytest.mark.parametrize(
    ("wanted", "constant"),
    [((), True), (("weight",), True), (("bias",), True), (("decay",), True), ((), False)],
    ids=str,
)
def test_sums_are_taken_where_somebody_needs_them(
    backend: str, wanted: tuple[str, ...], constant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments of the batch depend on the inputs, whose gradients need the sums then."""
    case = Case((4, 3, 5, 6, 2), [channels_last, contiguous], static=(True, False))
    mean = torch.randn(2, 5, dtype=torch.float64)
    moments = (mean, 0.5 + torch.rand_like(mean)) if constant else None
    taken: list[Any] = []
    take = fused.backward_sums
    monkeypatch.setattr(fused, "backward_sums", lambda *arguments: taken.append(1) or take(*arguments))

    def grads(fire: Callable[..., Any], **options: Any) -> list[Tensor]:
        leaves = [leaf.detach().requires_grad_() for leaf in case.leaves]
        given = {"weight": case.weight, "bias": case.bias, "decay": decays(5)}
        given = {name: p.detach().clone().requires_grad_(name in wanted) for name, p in given.items()}
        weight, bias, decay = given.values()
        settings = SETTINGS | {"decay": decay}
        spikes, _ = fire(case.xs(leaves), weight, bias, moments=moments, **settings, **options)
        return list(torch.autograd.grad(spikes, [*leaves, *(given[name] for name in wanted)], case.grad))

    for got, want in zip(grads(kernels.fire, backend=backend), grads(functional.fire), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    assert bool(taken) == (bool(wanted) or not constant)


def test_a_gradient_without_memory_of_its_own(backend: str) -> None:
    case = Case((4, 3, 17, 6, 5), [channels_last, contiguous])
    case.grad = torch.randn(4, 1, 17, 1, 1, dtype=torch.float64).expand(4, 3, 17, 6, 5)
    check(case, backend)


@pytest.mark.parametrize("memory", ["speed", "packed"])
def test_nobody_asks_for_gradients_of_these_spikes(memory: str) -> None:
    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> None:
            return None

    network = build("resnet8", memory=memory)
    Stop.apply(network.body(network.soma(network.stem(torch.randn(2, 3, 1, 8, 8))))).sum().backward()
    assert all(p.grad is None for p in network.parameters())


def test_three_branches_on_the_cpu() -> None:
    check(Case((4, 3, 17, 6, 5), [contiguous, channels_last, every_other], static=(False, True, False)), "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("static", [(False,), (False, False), (True, False)], ids=str)
def test_single_precision_equals_the_law_away_from_decisions(
    backend: str, dtype: torch.dtype, static: tuple[bool, ...]
) -> None:
    case = Case((4, 3, 17, 6, 5), [channels_last] * len(static), static=static, dtype=dtype, mean=0.7)
    assert_single_precision_equals_the_law(case, backend)


def assert_single_precision_equals_the_law(
    case: Case, backend: str, *, decay: float | Tensor = SETTINGS["decay"], **neuron: Any
) -> None:
    exact, dtype = case.double(), case.grad.dtype
    distance = (exact.potentials(decay, neuron.get("reset", "hard")) - SETTINGS["v_th"]).abs()
    near_threshold = distance < NEAR
    near_any = near_threshold | ((distance - SETTINGS["width"] / 2).abs() < NEAR)
    assert near_any.double().mean() < 0.001
    # without an upstream gradient a neuron takes part in no gradient at all
    left_out = near_any.any(0).expand_as(case.grad)
    case.grad, exact.grad = case.grad.masked_fill(left_out, 0), exact.grad.masked_fill(left_out, 0)

    neuron["decay"] = decay
    got, want = case.results(kernels.fire, backend=backend, **neuron), exact.results(functional.fire, **neuron)
    after_a_flip = near_threshold.cummax(0).values
    assert torch.equal(got["spikes"].double()[~after_a_flip], want["spikes"][~after_a_flip])
    for name in want.keys() - {"spikes"}:
        rounding = torch.finfo(got[name].dtype).eps
        torch.testing.assert_close(
            got[name].double(), want[name], rtol=4 * rounding, atol=1e-5 * want[name].abs().max().item()
        )
    assert got["spikes"].dtype == got["x0"].dtype == dtype
    assert got["mean"].dtype == got["weight"].dtype == torch.float32


@pytest.mark.parametrize("layout", [contiguous, channels_last])
def test_moments_far_from_zero_are_exact_to_rounding(backend: str, layout: Callable[[Tensor], Tensor]) -> None:
    case = Case((4, 3, 17, 6, 5), [layout, layout], dtype=torch.float32, mean=1000.0)
    got = case.results(kernels.fire, backend=backend)
    means, variances = zip(*(functional.moments(x.double()) for x in case.leaves), strict=True)
    rounding = torch.finfo(torch.float32).eps
    torch.testing.assert_close(got["mean"].double(), torch.stack(means), rtol=2 * rounding, atol=0)
    torch.testing.assert_close(got["var"].double(), torch.stack(variances), rtol=8 * rounding, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ties_at_the_threshold_and_the_edges_of_the_window(backend: str, dtype: torch.dtype) -> None:
    # powers of two throughout, so that u is exact and meets each decision often: v_th = 0.5, window 0 < u < 1
    settings = {"decay": 0.5, "v_th": 0.5, "width": 1.0, "eps": 2**-16}
    case = Case((4, 3, 17, 6, 5), [channels_last], dtype=dtype)
    case.leaves = [torch.randint(-4, 8, (4, 3, 17, 6, 5)).to(dtype) / 4]
    case.weight, case.bias = torch.full_like(case.weight, 2), torch.zeros_like(case.bias)
    for edge in (0.0, 0.5, 1.0):
        assert (case.leaves[0][0] == edge).any()
    moments = torch.zeros_like(case.bias), torch.full_like(case.bias, 1 - settings["eps"])
    got = case.results(kernels.fire, backend=backend, moments=moments, **settings)
    want = case.results(functional.fire, moments=moments, **settings)
    assert torch.equal(got["spikes"], want["spikes"])
    assert torch.equal(got["x0"] == 0, want["x0"] == 0)
    for name in ("x0", "weight", "bias"):
        torch.testing.assert_close(got[name], want[name])


def test_the_same_bits_twice(backend: str) -> None:
    pixels = (7, 6) if backend == "triton" else (59, 61)  # its interpreter is slow; the CPU needs many blocks
    case = Case((2, 5, 17, *pixels), [channels_last, contiguous], dtype=torch.float32)
    first, second = (case.results(kernels.fire, backend=backend) for _ in range(2))
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("layouts", [[contiguous], [channels_last, channels_last]], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("static", [False, True])
def test_the_operators_are_well_formed(backend: str, layouts: list[Callable[[Tensor], Tensor]], static: bool) -> None:
    case = Case((4, 3, 5, 6, 2), layouts, static=(static,) + (False,) * (len(layouts) - 1), dtype=torch.float32)
    xs = case.xs(case.leaves)
    mean, var = torch.zeros_like(case.weight), torch.ones_like(case.weight)
    neurons = (case.weight, case.bias, mean, var, None, *fused.Constants(0.3, 0.6, 0.9, 1e-4))
    sums = torch.randn(1 + len(xs), 5)
    torch.library.opcheck(fused.statistics, (xs, backend))
    torch.library.opcheck(fused.join, (torch.rand(3, 2 * len(xs) + 1, 5), backend))
    for pack in (False, True):
        torch.library.opcheck(fused.forward, (xs, *neurons, pack, backend))
    for keep in {False, backend == "cpu"}:
        torch.library.opcheck(fused.backward_sums, (case.grad, xs, *neurons, keep, backend))
    learnt = (*neurons[:4], torch.rand(5), 0.0, 0.6, 0.9, 1e-4, "atan", "soft", False)
    torch.library.opcheck(fused.forward, (xs, *learnt, False, backend), test_utils=["test_schema", "test_faketensor"])
    torch.library.opcheck(
        fused.backward_sums, (case.grad, xs, *learnt, False, backend), test_utils=["test_schema", "test_faketensor"]
    )
    _, du = fused.backward_sums(case.grad, xs, *neurons, backend == "cpu", backend)
    assert du.shape == (case.grad.shape if backend == "cpu" else (0,))
    for known in (du, du[:0]):
        torch.library.opcheck(fused.backward_inputs, (case.grad, xs, *neurons, known, sums, 72.0, backend))
    last = xs.pop().clone()
    torch.library.opcheck(
        fused.backward_inputs_,
        (case.grad, xs, [last], [len(xs)], *neurons, du, sums, 72.0, backend),
        test_utils=["test_schema", "test_autograd_registration", "test_faketensor"],  # a compiler never sees it
    )


def test_the_operators_are_well_formed_with_packed_spikes(triton_device: str) -> None:
    with torch.device(triton_device):
        case = Case((4, 3, 5, 6, 2), [channels_last], dtype=torch.float32)
        (x,), grad = case.leaves, case.grad.contiguous()
        xs = [x, torch.randint(256, (x.numel() // 8,), dtype=torch.uint8)]
        weight, bias, mean, var, sums = torch.rand(11, 5).split([2, 2, 2, 2, 3])
    neurons = (weight, bias, mean, var, None, *fused.Constants(0.3, 0.6, 0.9, 1e-4))
    rest = (*neurons, sums[:0], sums, 72.0, "triton")
    how: Any = {"test_utils": ["test_schema", "test_autograd_registration", "test_faketensor"]}  # no compiler sees them
    torch.library.opcheck(fused.statistics, (xs, "triton"), **how)
    torch.library.opcheck(fused.forward, (xs, *neurons, True, "triton"), **how)
    torch.library.opcheck(fused.backward_sums, (grad, xs, *neurons, False, "triton"), **how)
    torch.library.opcheck(fused.backward_inputs, (grad, xs, *rest), **how)
    torch.library.opcheck(fused.backward_inputs_, (grad, xs[1:], [x.clone()], [0], *rest), **how)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("layout", [channels_last, every_other])
def test_gradients_may_overwrite_their_branches(backend: str, place: int, layout: Callable[[Tensor], Tensor]) -> None:
    case = Case((4, 3, 5, 6, 2), [channels_last, layout])
    mean, var = torch.zeros_like(case.weight), torch.ones_like(case.weight)
    neurons = (case.weight, case.bias, mean, var, None, *fused.Constants(0.3, 0.6, 0.9, 1e-4))
    sums = torch.randn(3, 5, dtype=torch.float64)
    _, du = fused.backward_sums(case.grad, case.leaves, *neurons, backend == "cpu", backend)
    want = fused.backward_inputs(case.grad, case.leaves, *neurons, du, sums, 72.0, backend)
    anew = fused.backward_inputs(case.grad, case.leaves, *neurons, du[:0], sums, 72.0, backend)
    assert all(map(torch.equal, want, anew))
    overwritten, other = case.leaves[place], case.leaves[1 - place]
    (got,) = fused.backward_inputs_(case.grad, [other], [overwritten], [place], *neurons, du, sums, 72.0, backend)
    assert torch.equal(overwritten, want[place])
    assert torch.equal(got, want[1 - place])


def test_auto_is_the_cpu_backend_here() -> None:
    case = Case((4, 3, 17, 6, 5), [contiguous], dtype=torch.float32)
    auto, chosen = case.results(kernels.fire), case.results(kernels.fire, backend="cpu")
    for name, value in auto.items():
        assert torch.equal(value, chosen[name]), name


def test_a_single_value_per_channel_is_refused(backend: str) -> None:
    x = torch.randn(1, 1, 5).expand(4, -1, -1)
    with pytest.raises(ValueError, match="more than one value per channel"):
        kernels.fire([x], torch.ones(1, 5), torch.zeros(1, 5), backend=backend, **SETTINGS)


def test_an_unknown_backend_is_refused() -> None:
    x = torch.randn(4, 3, 5)
    with pytest.raises(ValueError, match="unknown backend 'gpu'; choose one of auto, reference, triton, cpu"):
        kernels.fire([x], torch.ones(1, 5), torch.zeros(1, 5), backend="gpu", **SETTINGS)


@pytest.mark.parametrize("name", ["v_th", "width", "eps"])
def test_a_backend_without_gradients_for_tensors_refuses_them(name: str) -> None:
    x, tensor = torch.randn(4, 3, 5), torch.tensor(0.5)
    message = f"backend 'cpu' needs the neuron's settings as numbers, but {name} came as a tensor"
    with pytest.raises(ValueError, match=f"^{message}$"):
        kernels.fire([x], torch.ones(1, 5), torch.zeros(1, 5), backend="cpu", **SETTINGS | {name: tensor})


@pytest.mark.skipif(torch.__version__ < "2.10", reason="torch 2.9 compiles a network in several parts")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does it
@pytest.mark.parametrize(
    ("memory", "neuron"),
    [("speed", {}), ("packed", {}), ("speed", {"learn_decay": "channel", "surrogate": "atan", "reset": "soft"})],
)
def test_a_network_compiles_as_one_graph(memory: str, neuron: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    network = build("resnet8", memory=memory, **neuron)
    images, packing, forward = torch.randn(3, 1, 8, 8), [], cpu.forward
    monkeypatch.setattr(cpu, "forward", lambda xs, of, pack: packing.append(pack) or forward(xs, of, pack))
    expected = network(images, timesteps=2)
    assert set(packing) == {memory == "packed"}
    grads = torch.autograd.grad(expected.sum(), list(network.parameters()))
    packing.clear()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    logits = compiled(images, timesteps=2)
    assert set(packing) == {False}  # nobody would find the bits
    assert torch.equal(logits, expected)
    for got, want in zip(torch.autograd.grad(logits.sum(), list(network.parameters())), grads, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.skipif(torch.__version__ < "2.10", reason="torch 2.9 compiles a network in several parts")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does it
@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_a_network_compiles_as_one_graph_for_inference(without_gradients: Any) -> None:
    network, images = build("resnet8").double().eval(), torch.randn(3, 1, 8, 8, dtype=torch.float64)
    with without_gradients():
        compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(images, timesteps=2), network(images, timesteps=2))
