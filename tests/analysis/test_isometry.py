import pytest
import torch
from torch import Tensor

from rheobase import functional
from rheobase.analysis import isometry as iso
from rheobase.analysis.somas import on_reference
from rheobase.models import build
from rheobase.nn import Conv2d, ReferenceSoma, somas

SMALL = {"num_classes": 3, "in_channels": 2, "image_size": 8}


def block(x: Tensor, conv: Conv2d, soma: ReferenceSoma) -> Tensor:
    return soma.current(conv(soma.fire(x)))


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_probes_agree_with_the_dense_jacobian(decay: float) -> None:
    torch.manual_seed(3)
    conv = Conv2d(3, 4, 3, padding=1, bias=False).double()
    soma = ReferenceSoma(4, decay=decay).double()
    x = torch.randn(2, 3, 3, 5, 4, dtype=torch.float64).mul(0.7).requires_grad_()
    output = block(x, conv, soma)
    where = torch.zeros_like(output, dtype=torch.bool)
    where[1] = True
    rows = [torch.autograd.grad(y, x, retain_graph=True)[0].flatten() for y in output[where]]
    gram = torch.stack(rows) @ torch.stack(rows).T
    phi = float(gram.trace()) / len(gram)
    varphi = float((gram @ gram).trace()) / len(gram) - phi**2
    found = iso.probe(output, x, where, 400, torch.Generator().manual_seed(5))
    assert found.phi_error < 0.03 * phi
    assert abs(found.phi - phi) < 4 * found.phi_error
    assert abs(found.varphi - varphi) < 4 * found.varphi_error
    assert found.varphi_error < 0.1 * varphi


@pytest.mark.parametrize("r", [1.0, 1.8, 2.0, 3.0])
def test_theorem_1_in_numbers(r: float) -> None:
    torch.manual_seed(7)
    conv = Conv2d(128, 128, 3, padding=1, padding_mode="circular", bias=False)  # no borders
    soma = ReferenceSoma(128, decay=0.0, v_th=0.3, width=0.3 * r)
    x = torch.randn(1, 7, 128, 6, 5).mul(0.3).requires_grad_()
    output = block(x, conv, soma)
    found = iso.probe(output, x, torch.ones_like(output, dtype=torch.bool), 4, torch.Generator().manual_seed(1))
    assert found.phi == pytest.approx(iso.predicted_phi(r), rel=0.05)
    assert found.varphi == pytest.approx(iso.predicted_varphi(r), rel=0.1)


def test_predictions_by_hand() -> None:
    assert iso.window(2.0) == pytest.approx(0.47725, abs=1e-5)
    assert iso.predicted_phi(2.0) == pytest.approx(0.8938, abs=1e-4)
    assert iso.predicted_phi(1.0) == pytest.approx(1.811, abs=1e-3)
    assert iso.predicted_varphi(2.0) == pytest.approx(iso.predicted_phi(2.0) ** 2 / 0.47725, rel=1e-4)


def test_residual_predictions_by_hand() -> None:
    assert iso.predicted_residual_phi(2.0, behind_identity=False) == pytest.approx(0.8938 * (1 + 0.8938) / 2, abs=1e-4)
    # p = 0.15866: spikes are 2.3027 with that chance, -0.4343 else; 0.3880 of the sums lie in (0, 2), 0.1562 above 1
    assert iso.predicted_residual_phi(2.0, behind_identity=True) == pytest.approx(
        0.3880 / (4 * 0.1562 * 0.8438) * (1 + 0.8938) / 2, rel=2e-3
    )


def test_an_isometry_has_phi_1_and_varphi_0() -> None:
    x = torch.randn(5, 7, dtype=torch.float64).requires_grad_()
    turn = torch.linalg.qr(torch.randn(7, 7, dtype=torch.float64)).Q
    output = x @ turn
    found = iso.probe(output, x, torch.ones_like(output, dtype=torch.bool), 200, torch.Generator().manual_seed(2))
    assert abs(found.phi - 1) < 4 * found.phi_error
    assert abs(found.varphi) < 4 * found.varphi_error + 1e-9


def test_blocks_and_steps_of_a_network() -> None:
    torch.manual_seed(1)
    network = build("resnet8", **SMALL)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    found = iso.isometry(network, torch.randn(5, 2, 8, 8), 3, probes=3)
    assert [b.name for b in found] == ["body.0", "body.1", "body.2"]
    assert all(len(b.steps) == 3 and e.phi > 0.1 and e.phi_error > 0 for b in found for e in b.steps)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_one_probe_is_refused() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="at least 2 probes"):
        iso.probe(x * 2, x, torch.ones(2, dtype=torch.bool), 1, torch.Generator())


@pytest.mark.parametrize("training", [True, False])
def test_network_on_the_law_is_the_same_network(training: bool) -> None:
    torch.manual_seed(2)
    network = build("resnet8", **SMALL).double().train(training)
    x = torch.randn(5, 2, 8, 8, dtype=torch.float64)
    law = on_reference(network)
    currents: dict[str, Tensor] = {}
    for name, soma in somas(law).items():
        soma.observe = lambda current, name=name: currents.setdefault(name, current)
    assert torch.equal(law(x, 3), network(x, 3))
    assert list(currents) == ["soma", *(f"body.{i}.soma{k}" for i in range(3) for k in (1, 2))]
    torch.testing.assert_close(law.state_dict(), network.state_dict())
    soma = somas(law)["soma"]
    assert torch.equal(soma.fire(currents["soma"]), functional.lif(currents["soma"], decay=0.25, v_th=0.5, width=1.0))


def test_an_estimate_by_hand() -> None:
    """The variance of three probes is 1, so their squared mean 4 is 1/3 too large. Left out one by one: 1/2, 3, 7/2."""
    found = iso._estimate(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 6.0, 7.0]))
    assert (found.phi, found.phi_error) == pytest.approx((2, 3**-0.5))
    assert found.varphi == pytest.approx(6 - (4 - 1 / 3))
    assert found.varphi_error == pytest.approx((2 / 3 * ((11 / 6) ** 2 + (2 / 3) ** 2 + (7 / 6) ** 2)) ** 0.5)
