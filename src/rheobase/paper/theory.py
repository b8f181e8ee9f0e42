"""Results that need no data: Theorem 1, Theorem 2, Fig. 3 and Fig. 4."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor

from rheobase.analysis.distributions import firing_distribution, membrane_distribution
from rheobase.analysis.isometry import (
    Estimate,
    isometry,
    predicted_phi,
    predicted_residual_phi,
    predicted_varphi,
    probe,
)
from rheobase.models import build
from rheobase.nn import Conv2d, ReferenceSoma
from rheobase.paper.result import Result
from rheobase.report.charts import Chart

V_TH, DECAY = 0.5, 0.25
SIMULATED = "simulated currents"
NETWORKS = (  # name, image size, number of images, decay
    ("plain20", 8, 8, 0.0),
    ("plain20", 8, 8, DECAY),
    ("resnet19", 8, 8, 0.0),
    ("resnet19", 8, 8, DECAY),
    ("resnet50", 64, 4, DECAY),
)


def theorem1(
    *, channels: int = 128, blocks: int = 3, probes: int = 6, networks: Sequence[tuple[str, int, int, float]] = NETWORKS
) -> Result:
    """Measure phi and varphi of LIF - convolution - tdBN at initialisation, and compare them with a calculation.

    Also measure whole networks, and Lemma 2, on which the theorem is based, with rectifiers instead of spikes.
    """
    lemma2 = [_rectifiers(gain, channels, probes) for gain in (1.0, 2.0, 4.0)]
    rows = [_wide_blocks(r, channels, blocks, probes) for r in (1.0, 1.8, 2.0, 3.0)]
    shortcuts = _residual_blocks(2.0, channels, probes)
    entries: list[dict[str, Any]] = []
    for name, size, images, decay in networks:
        torch.manual_seed(0)
        network = build(name, num_classes=10, in_channels=3, image_size=size, decay=decay)
        found = isometry(network, torch.randn(images, 3, size, size), 2, probes=2)
        phis = [sum(e.phi for e in b.steps) / len(b.steps) for b in found]
        entries.append(
            {"network": name, "decay": decay, "blocks": [asdict(b) for b in found], "phis": phis, "product": prod(phis)}
        )
    worst = max(abs(row["phi"] / row["predicted_phi"] - 1) for row in rows)
    by_ratio = {row["ratio"]: row for row in rows}
    comparison = [
        "Lemma 2, phi(J J^T) = second moment out / in, for convolutions with rectifiers: "
        + "; ".join(f"phi {row['phi']:.3f}, moments {row['second_moments']:.3f}" for row in lemma2)
        + ". It does not hold with spikes: at r = 1 the ratio of moments is "
        f"{by_ratio[1.0]['second_moments']:.3f}, but phi is {by_ratio[1.0]['phi']:.3f}.",
        "The paper: phi(J J^T) = 1 in every block at decay 0, and varphi(J J^T) is near 0 for isometry (Lemma 1).",
        f"Here phi follows [Phi(1 + r/2) - Phi(1 - r/2)] / (r^2 p (1 - p)) with r = width / v_th, p = 1 - Phi(1), "
        f"within {100 * worst:.1f} %: {by_ratio[1.0]['phi']:.3f} at r = 1, {by_ratio[1.8]['phi']:.3f} at 1.8, "
        f"{by_ratio[2.0]['phi']:.3f} at 2, {by_ratio[3.0]['phi']:.3f} at 3. It is 1 only near r = 1.8.",
        f"varphi is not near 0: {by_ratio[2.0]['varphi']:.2f} at r = 2 (predicted phi^2 / P = "
        f"{by_ratio[2.0]['predicted_varphi']:.2f}). Half of the neurons pass on no gradient, "
        "and the others more than their share.",
        "Residual blocks, r = 2: "
        + "; ".join(f"{row['block']} phi {row['phi']:.3f} (calculated {row['predicted_phi']:.3f})" for row in shortcuts)
        + ".",
        *(_range(entry) for entry in entries),
    ]
    content = {
        "v_th": V_TH, "channels": channels, "lemma2": lemma2, "ratios": rows, "shortcuts": shortcuts,
        "networks": entries,
    }  # fmt: skip
    title, source = "Theorem 1: gradient norm per block", "noise, at initialisation"
    return Result("theorem1", title, source, content, comparison, theorem1_charts(content))


def theorem1_charts(content: Mapping[str, Any]) -> list[Chart]:
    """Return the two charts of a kept result."""
    ratios = [0.8 + 0.05 * i for i in range(49)]
    rows, phi = content["ratios"], "phi, factor of the squared gradient norm"
    return [
        Chart(
            "LIF - convolution - tdBN, decay 0",
            "width / v_th",
            phi,
            {
                "measured": ([row["ratio"] for row in rows], [row["phi"] for row in rows]),
                "calculated": (ratios, [predicted_phi(ratio) for ratio in ratios]),
                "the paper": (ratios, [1.0] * len(ratios)),
            },
            looks={"measured": (0, None), "calculated": (1, 0)},
        ),
        Chart(
            "networks at initialisation, mean over timesteps",
            "block",
            phi,
            {
                f"{entry['network']}, decay {entry['decay']:g}": (
                    list(range(1, len(entry["phis"]) + 1)),
                    entry["phis"],
                )
                for entry in content["networks"]
            },
        ),
    ]


def _rectifiers(gain: float, channels: int, probes: int) -> dict[str, float]:
    """Measure convolution - rectifier on centred input. The expected ratio of second moments is gain / 2."""
    torch.manual_seed(0)
    conv = _convolution(channels)
    torch.nn.init.normal_(conv.weight, std=(gain / conv.weight[0].numel()) ** 0.5)
    start = torch.randn(1, 8, channels, 8, 8, requires_grad=True)
    output = conv(start).relu()
    found = _probe(output, start, probes)
    moments = _second_moments(output, start)
    return {"gain": gain, "phi": found.phi, "phi_error": found.phi_error, "second_moments": moments}


def _wide_blocks(ratio: float, channels: int, blocks: int, probes: int) -> dict[str, float]:
    """Measure a chain of blocks that starts with currents N(0, v_th^2), and return the means."""
    torch.manual_seed(0)
    current = V_TH * torch.randn(1, 8, channels, 8, 8)
    estimates, moments = [], 0.0
    for block in range(blocks):
        soma = ReferenceSoma(channels, decay=0.0, v_th=V_TH, width=ratio * V_TH)
        start = current.detach().requires_grad_()
        current = soma.current(_convolution(channels)(soma.fire(start)))
        estimates.append(_probe(current, start, probes, seed=block))
        moments += _second_moments(current, start) / blocks
    n = len(estimates)
    return {
        "ratio": ratio,
        "second_moments": moments,
        "phi": sum(e.phi for e in estimates) / n,
        "phi_error": sum(e.phi_error**2 for e in estimates) ** 0.5 / n,
        "predicted_phi": predicted_phi(ratio),
        "varphi": sum(e.varphi for e in estimates) / n,
        "varphi_error": sum(e.varphi_error**2 for e in estimates) ** 0.5 / n,
        "predicted_varphi": predicted_varphi(ratio),
    }


def _residual_blocks(ratio: float, channels: int, probes: int) -> list[dict[str, Any]]:
    """Measure two consecutive blocks with identity shortcuts. Only the first receives a normal current."""
    torch.manual_seed(0)
    current = V_TH * torch.randn(1, 8, channels, 8, 8)
    rows = []
    for block, behind_identity in (("behind a convolution", False), ("behind an identity shortcut", True)):
        inner, outer = (ReferenceSoma(channels, n, decay=0.0, v_th=V_TH, width=ratio * V_TH) for n in (1, 2))
        start = current.detach().requires_grad_()
        spikes = outer.fire(start)
        hidden = inner(_convolution(channels)(spikes))
        current = outer.current(_convolution(channels)(hidden), spikes)
        found = _probe(current, start, probes)
        predicted = predicted_residual_phi(ratio, behind_identity=behind_identity)
        rows.append({"block": block, "phi": found.phi, "phi_error": found.phi_error, "predicted_phi": predicted})
    return rows


def _convolution(channels: int) -> Conv2d:
    """Return a convolution that wraps around, so that there are no borders."""
    return Conv2d(channels, channels, 3, padding=1, padding_mode="circular", bias=False)


def _probe(output: Tensor, start: Tensor, probes: int, seed: int = 1) -> Estimate:
    everywhere = torch.ones_like(output, dtype=torch.bool)
    return probe(output, start, everywhere, probes, torch.Generator().manual_seed(seed))


def _second_moments(output: Tensor, start: Tensor) -> float:
    """Return the ratio of second moments, output to input."""
    return float(output.detach().square().mean() / start.detach().square().mean())


def _range(entry: dict[str, Any]) -> str:
    phis = entry["phis"]
    return (
        f"{entry['network']} at decay {entry['decay']:g}, r = 2: phi is {min(phis):.2f} to {max(phis):.2f}, mean "
        f"over timesteps; the product over {len(phis)} blocks is {entry['product']:.2g}."
    )


def theorem2(*, timesteps: int = 8, neurons: int = 200_000) -> Result:
    """Compare the variance of u with sigma^2 (1 - decay^(2t)) / (1 - decay^2), with and without resets."""
    rows = []
    for decay in (0.25, 0.5):
        for sigma in (0.1 * V_TH, V_TH, 2 * V_TH):
            found = membrane_distribution(sigma, decay=decay, v_th=V_TH, timesteps=timesteps, neurons=neurons)
            row = asdict(found)
            del row["histogram"]
            rows.append({"decay": decay, **row})
    quiet = [row for row in rows if max(row["fired"]) < 1e-4]
    worst = max(abs(m / c - 1) for row in quiet for m, c in zip(row["variance"], row["without_reset"], strict=True))
    at = {(row["decay"], row["sigma"]): row for row in rows}
    standard = at[DECAY, V_TH]
    half = at[0.5, V_TH]
    comparison = [
        "The paper: u is normal with a variance proportional to that of x, about sigma^2 (1 + decay^2).",
        f"If no neuron fires, the variance is sigma^2 (1 - decay^(2t)) / (1 - decay^2), within {100 * worst:.2f} % "
        "here. The paper's two terms are the first two of this sum.",
        f"With tdBN's sigma = v_th, resets change it: at decay 0.25 and timestep {timesteps} it is "
        f"{standard['variance'][-1] / V_TH**2:.3f} sigma^2 (without resets "
        f"{standard['without_reset'][-1] / V_TH**2:.3f}, two terms {standard['two_terms'][-1] / V_TH**2:.3f}), "
        f"at decay 0.5 {half['variance'][-1] / V_TH**2:.3f} ({half['without_reset'][-1] / V_TH**2:.3f}).",
        f"Resets remove only large potentials, so u is neither normal nor centred: its mean is "
        f"{standard['mean'][-1] / V_TH:.3f} v_th at decay 0.25, {half['mean'][-1] / V_TH:.3f} v_th at 0.5.",
    ]
    content = {"rows": rows}
    title = "Theorem 2: variance of the potential"
    return Result("theorem2", title, SIMULATED, content, comparison, theorem2_charts(content))


def theorem2_charts(content: Mapping[str, Any]) -> list[Chart]:
    """Return a chart for every decay of a kept result."""
    found = []
    for decay in dict.fromkeys(row["decay"] for row in content["rows"]):
        rows = [row for row in content["rows"] if row["decay"] == decay]
        steps = list(range(1, len(rows[0]["variance"]) + 1))
        series = {
            f"sigma = {row['sigma'] / V_TH:g} v_th": (steps, [v / row["sigma"] ** 2 for v in row["variance"]])
            for row in rows
        }
        (standard,) = (row for row in rows if row["sigma"] == V_TH)
        for label, key in (("no reset", "without_reset"), ("two terms", "two_terms")):
            series[label] = (steps, [v / V_TH**2 for v in standard[key]])
        found.append(Chart(f"decay {decay:g}", "timestep", "variance of u / sigma^2", series))
    return found


def fig3(*, timesteps: int = 6) -> Result:
    """Compute histograms of the potential for several variances of the current, at the paper's decay of 0.25."""
    found = [
        membrane_distribution(ratio * V_TH, decay=DECAY, v_th=V_TH, timesteps=timesteps) for ratio in (0.5, 1.0, 2.0)
    ]
    comparison = [
        "The paper shows potentials that look like their currents. So do these: over all timesteps, the variance is "
        + ", ".join(
            f"{sum(f.variance) / timesteps / f.sigma**2:.3f} sigma^2 at sigma = {f.sigma / V_TH:g} v_th" for f in found
        )
        + ".",
        "The paper does not state its variances; these are ours.",
    ]
    content = {"rows": [asdict(f) for f in found]}
    return Result("fig3", "Fig. 3: membrane potential", SIMULATED, content, comparison, fig3_charts(content))


def fig3_charts(content: Mapping[str, Any]) -> list[Chart]:
    """Return the chart of a kept result, in units of the threshold."""
    series = {}
    for row in content["rows"]:
        centres = [(a + b) / 2 / V_TH for a, b in pairwise(row["histogram"]["edges"])]
        series[f"sigma = {row['sigma'] / V_TH:g} v_th"] = (centres, [V_TH * d for d in row["histogram"]["density"]])
    title = "potential before reset, decay 0.25"
    return [Chart(title, "u / v_th", "density", series, mark=("threshold", 1.0))]


def fig4(*, timesteps: int = 6) -> Result:
    """Compute the fractions of neurons that fire k times, for several variances of the current."""
    found = [
        firing_distribution(ratio * V_TH, decay=DECAY, v_th=V_TH, timesteps=timesteps) for ratio in (0.25, 1.0, 4.0)
    ]
    low, middle, high = found
    comparison = [
        f"The paper: if the variance is too small, neurons are silent (a); if it is too large, they always fire (c). "
        f"Here {100 * low.shares[0]:.1f} % never fire at sigma = v_th / 4, {100 * middle.shares[0]:.1f} % at v_th, "
        f"{100 * high.shares[0]:.1f} % at 4 v_th.",
        f"Rates are {low.rate:.4f}, {middle.rate:.3f} and {high.rate:.3f} per timestep. With independent, centred "
        "currents, no variance makes a neuron fire at every timestep: the rate stays below one half.",
    ]
    content = {"rows": [asdict(f) for f in found]}
    return Result("fig4", "Fig. 4: firing rates", SIMULATED, content, comparison, fig4_charts(content))


def fig4_charts(content: Mapping[str, Any]) -> list[Chart]:
    """Return the chart of a kept result."""
    counts = list(range(len(content["rows"][0]["shares"])))
    series = {f"sigma = {row['sigma'] / V_TH:g} v_th": (counts, row["shares"]) for row in content["rows"]}
    title = f"{counts[-1]} timesteps, decay 0.25"
    return [Chart(title, "spikes of a neuron", "share of neurons", series, bars=True)]
