"""The report of a small run, as text and in a real browser."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

from rheobase import recipes
from rheobase.cli import app
from rheobase.data import load
from rheobase.data.feed import first_images
from rheobase.deploy.agreement import record
from rheobase.models import build
from rheobase.report import page as pages
from rheobase.report import svg
from rheobase.report.page import render
from rheobase.tasks import inspect as inspection
from rheobase.train import checkpoint
from rheobase.train.runs import Run, load_data, load_network
from tests.deploy.networks import randomise

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--virtual-time-budget=4000",
    "--window-size=1200,900", "--dump-dom",
]  # fmt: skip
TITLES = [
    "Loss", "Accuracy", "Accuracy against timesteps", "Confusion matrix", "Firing rates",
    "Gradient flow", "Inputs and spikes", "Membrane potentials", "Operations and energy", "Network",
    "Reproduce this run",
]  # fmt: skip

# Shows the page in frames of two widths, uses its buttons, and writes down what it sees.
HARNESS = """<!doctype html><body><script>
const found = {}, page = %s;
for (const width of [360, 1200]) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:800px;border:0`;
  frame.onload = () => {
    const view = frame.contentWindow, doc = frame.contentDocument, root = doc.documentElement;
    const shown = () => [...doc.querySelectorAll(".sample")].filter(s => !s.hidden).map(s => s.id);
    const back = () => view.getComputedStyle(doc.body).backgroundColor;
    const result = {overflow: root.scrollWidth - width, errors: view.errors, charts: 0, before: shown(), light: back()};
    for (const s of doc.querySelectorAll("svg")) if (s.getBoundingClientRect().height > 5) result.charts++;
    const table = doc.querySelector(".scroll.tall"), raster = doc.querySelector(".sample svg");
    const sees = part => {
      const inner = table.querySelector(part).getBoundingClientRect(), outer = table.getBoundingClientRect();
      return inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
    };
    table.style.maxHeight = "150px";  // as if the network were larger
    result.foot = sees("tfoot");
    table.scrollTop = 1e6;
    result.head = sees("thead");
    result.empty = raster.parentElement.clientWidth - raster.clientWidth;
    doc.querySelectorAll("[data-shows]")[2].click();
    doc.getElementById("theme").click();
    Object.assign(result, {after: shown(), dark: back()});
    found[width] = result;
    document.title = JSON.stringify(found);
  };
  frame.srcdoc = page;
  document.body.append(frame);
}
</script></body>"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    run = Run.create(folder, recipes.get("demo").changed(["timesteps=3"]), load("digits").info, torch.device("cpu"))
    checkpoint.save(run.checkpoints, 1, {"weights": randomise(run.network(), 8).float().state_dict()}, {})
    for epoch in (1, 2):
        row = {"epoch": epoch, "loss": 2 / epoch, "train_accuracy": 0.4 * epoch}
        run.append(row | {"test_loss": 1.5 / epoch, "test_accuracy": 0.3 * epoch})
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    result = CliRunner().invoke(app, ["report", str(run), "--images", "40"])
    assert result.exit_code == 0, result.output
    return (run / "report.html").read_text()


def test_page_has_everything_and_loads_nothing(page: str) -> None:
    assert re.findall(r"<h2>(.*?)</h2>", page) == TITLES
    assert "rheobase train demo --set timesteps=3</pre>" in page
    assert "60.00 %" in page
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|url\(|https?://""", page)
    assert len(page.encode()) < 3e6


def test_rasters_are_of_the_trained_network(run: Path) -> None:
    samples = inspection.inspect_run(Run(run), images=40)["samples"]
    recipe = Run(run).recipe
    images, _ = first_images(load_data(recipe, None), recipe, 40, torch.float32)
    found = record(load_network(Run(run)), images, 3)
    probabilities = found.logits.mean(0).softmax(1)
    for sample in samples:
        image = (probabilities - torch.tensor(sample["probabilities"])).abs().sum(1).argmin()
        for name, raster in sample["raster"].items():
            own = found.spikes[name.replace(".", "_")][:, image].float()
            assert raster == own[:, inspection._telling(own)].T.int().tolist()


def test_few_events_are_seen_as_well_as_many() -> None:
    network = build("resnet8", in_channels=2, image_size=8).eval()
    counts = torch.randint(0, 3, (3, 4, 2, 8, 8)).float()  # [T, N, C, H, W]
    counts[1, :, 0, 5, 6] = 200.0  # a hot pixel
    counts[:, 3] = 0.0
    info = replace(load("digits").info, channels=2, mean=(0.0, 0.0), std=(1.0, 1.0), timesteps=3)
    logits = network(counts)
    labels = logits.mean(0).argmax(1)  # all are recognised, so all are shown
    samples = inspection._samples(network, counts, labels, logits, info, 3)
    shown = torch.tensor([sample["pixels"] for sample in samples])
    assert (shown[:3, 0, 5, 6] == 255).all()
    assert shown[:3].flatten(1).median(1).values.min() > 60
    assert not shown[3].any()
    assert "Events of polarity 0 are red" in pages._samples(samples, info.classes)
    video = counts * 25 + 20
    info = replace(info, mean=(60.0, 60.0), std=(30.0, 30.0))
    samples = inspection._samples(network, (video - 60) / 30, labels, logits, info, 3)
    assert max(map(max, samples[0]["pixels"][1])) < 100, "pixels, unlike events, are shown as they are"


def test_facts_by_hand() -> None:
    """The last epoch is not the best, and a large layer counts more than a small one."""
    layers = [{"rate": 0.1, "neurons": 30}, {"rate": 0.4, "neurons": 10}]
    rows = [{"test_accuracy": 0.9}, {"test_accuracy": 0.7}, {}]
    done = {"joule": 2e-6, "dense_joule": 3e-3}
    assert pages._facts({"operations": done, "layers": layers, "rows": rows}) == {
        "test accuracy, last epoch": "70.00 %",
        "best epoch": "90.00 %",
        "spikes per neuron and timestep": "0.175",
        "energy per image, 45 nm": "2 uJ",
        "energy of the same network without spikes": "3 mJ",
    }


def test_the_share_of_operations_that_is_used_is_that_of_one_timestep() -> None:
    layer = {"name": "conv", "fed_by": "spikes", "additions": 300.0, "multiplications": 60.0, "dense": 400.0}
    totals = {"joule": 1e-6, "dense_joule": 1e-6, "images": 1, "bias": 0.0, "neuron_updates": 0.0}
    shown = pages._operations({**layer, **totals, "layers": [layer]}, timesteps=3)
    assert re.findall("<td>(.*?)</td>", shown)[:6] == ["conv", "spikes", "300", "60", "400", "0.300"]


def test_labels_cannot_break_the_page() -> None:
    assert "<b>" not in svg.heat_map([[1, 0], [0, 1]], ["<b>", "x"])
    assert "<i>" not in svg.line_chart({"<i>": ([1, 2], [3, 4]), "b": ([1], [2])}, "<i>", "y")


def words(drawn: str) -> list[tuple[str, bool]]:
    """Every text of a drawing, and whether it is turned."""
    found = ElementTree.fromstring(drawn).iter("text")
    return [(text.text or "", "rotate" in text.get("transform", "")) for text in found]


def diagonal(n: int) -> list[list[int]]:
    return [[3 * (i == j) for j in range(n)] for i in range(n)]


def test_a_confusion_matrix_has_the_names_of_its_classes() -> None:
    alike = words(svg.heat_map(diagonal(2), ["a long class name, 1", "a long class name, 2"]))
    assert len({word for word, _ in alike if word != "3"}) == 2, "names that begin alike show their ends"
    short = words(svg.heat_map(diagonal(3), ["a", "bc", "def"]))
    assert [word for word in short if word[0] != "3"] == [(name, False) for name in ("a", "bc", "def")] * 2
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "hand clapping"]
    names += ["left arm clockwise"]
    long = words(svg.heat_map(diagonal(11), names))
    shown = [name for name, turned in long if turned]
    assert shown == [*names[:10], "left arm clo\u2026"], "whole but for a very long one, turned where they need it"
    assert [name for name, turned in long if not turned and name != "3"] == shown


@pytest.mark.parametrize("n", [13, 100, 1000])
def test_a_confusion_matrix_of_many_classes_is_readable(n: int) -> None:
    drawn = ElementTree.fromstring(svg.heat_map(diagonal(n), [f"class {i}" for i in range(n)]))
    cells = list(drawn.iter("rect"))
    assert len(cells) == n, "a cell where there is something to see"
    assert all(float(cell.get("width", 0)) > 0 for cell in cells)
    heights = [float(text.get("y", 0)) for text in drawn.iter("text") if not text.get("transform")]
    assert len(heights) > 5
    assert all(b - a >= 11 for a, b in pairwise(heights)), "the font has 11 pixels"


def chart_of(page: str, title: str) -> ElementTree.Element:
    """The chart of a section."""
    found = re.search(rf"<h2>{title}</h2>.*?(<svg.*?</svg>)", page)
    assert found
    return ElementTree.fromstring(found[1])


def named(drawn: ElementTree.Element) -> list[str]:
    """The names of layers at a chart, but not the name of its axis."""
    return [text.text or "" for text in drawn.iter("text") if "soma" in (text.text or "")]


def test_a_layer_has_one_name_everywhere(page: str) -> None:
    layers = ["soma", *(f"{i}.soma{k}" for i in range(3) for k in (1, 2))]
    raster, gradients = chart_of(page, "Inputs and spikes"), chart_of(page, "Gradient flow")
    assert named(chart_of(page, "Firing rates")) == named(raster) == layers
    assert named(gradients) == layers[1:], "those between the first and the last"
    assert re.findall(r"<figcaption>(.*?)</figcaption>", page) == layers
    assert next(gradients.iter("title")).text.startswith("spikes 0.soma1: ")


def test_findings_call_layers_as_the_charts_do(run: Path) -> None:
    data = inspection.inspect_run(Run(run), images=9)
    said = render(data | {"findings": ["body.1.soma1: no neuron fires", "body_2_soma2: firing fades"]})
    assert "<ul><li>1.soma1: no neuron fires</li><li>2.soma2: firing fades</li></ul>" in said


def test_gradients_of_weights_stand_at_their_layers(run: Path) -> None:
    data = inspection.inspect_run(Run(run), images=9)
    layers = {"layers": ["0.soma1", "0.shortcut.1", "0.soma2"], "spikes": [1.0, 2.0, 3.0]}
    for weights, expected in (
        ([5.0, 7.0], ["weights 0.soma1: 5", "weights 0.soma2: 7"]),  # a shortcut has none of its own
        ([5.0, 7.0, 8.0, 9.0], ["weights 1: 5", "weights 2: 7", "weights 3: 8", "weights 4: 9"]),
    ):
        drawn = chart_of(render(data | {"gradients": layers | {"weights": weights}}), "Gradient flow")
        assert [dot[0].text for dot in drawn.iter("circle")][3:] == expected


def test_names_below_bars_are_turned_and_thinned_out() -> None:
    few = svg.bar_chart(["soma", "features.0.soma"], [0.1, 0.2], "layer", "rate")
    assert ("\u2026tures.0.soma", False) in words(few), "the end of a long name is what tells layers apart"
    assert "<title>features.0.soma: 0.2</title>" in few
    for count, shown in ((7, 7), (40, 20)):
        drawn = svg.bar_chart([f"{i}.soma1" for i in range(count)], [0.1] * count, "layer", "rate")
        assert [word for word, turned in words(drawn) if turned and "soma" in word] == [
            f"{i}.soma1" for i in range(0, count, count // shown)
        ]


@pytest.mark.parametrize(("layers", "steps", "columns"), [(9, 3, 1), (11, 3, 2), (11, 40, 1), (2, 300, 1), (33, 6, 3)])
def test_spikes_of_many_layers_stand_in_columns(layers: int, steps: int, columns: int) -> None:
    fired = {
        f"body.{i}.soma": [[int((i + k + t) % 3 == 0) for t in range(steps)] for k in range(4)] for i in range(layers)
    }
    drawn = ElementTree.fromstring(svg.raster(fired))
    bands = [rect for rect in drawn.iter("rect") if rect.get("class") == "band"]
    spikes = [rect for rect in drawn.iter("rect") if rect.get("class") == "spike"]
    assert len(bands) == layers
    assert len({band.get("x") for band in bands}) == columns
    assert len(spikes) == sum(sum(map(sum, rows)) for rows in fired.values())
    assert len({(spike.get("x"), spike.get("y")) for spike in spikes}) == len(spikes), "none on top of another"
    _, _, width, height = map(float, drawn.get("viewBox", "").split())
    for rect in (*bands, *spikes):
        x, y, wide, tall = (float(rect.get(key, 0)) for key in ("x", "y", "width", "height"))
        assert wide > 0
        assert x + wide <= width
        assert y + tall <= height


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_pictures_are_pngs_of_the_pixels(channels: int) -> None:
    image = pytest.importorskip("PIL.Image", reason="reading pictures needs pillow")
    from base64 import b64decode
    from io import BytesIO

    pixels = torch.arange(channels * 2 * 3, dtype=torch.uint8).view(channels, 2, 3) * 11
    found = image.open(BytesIO(b64decode(svg.png(pixels.tolist()).partition(",")[2])))
    assert found.size == (3, 2)
    values = torch.tensor(list(found.tobytes())).view(2, 3, -1).movedim(2, 0)
    assert torch.equal(values[:channels], pixels.long())


@pytest.mark.parametrize(
    "chart",
    [
        lambda: svg.line_chart({"a": ([1], [0.0]), "b": ([1, 2], [float("nan"), 3])}, "x", "y"),
        lambda: svg.line_chart({"a": ([1, 2], [0.0, 1e-9])}, "x", "y", log=True),
        lambda: svg.line_chart({"a": ([], [])}, "x", "y"),
        lambda: svg.bar_chart(["a"], [0.0], "x", "y"),
        lambda: svg.histogram([0, 1, 2], [0.0, 0.0], 1.0, "t"),
    ],
)
def test_charts_of_next_to_nothing(chart: Callable[[], str]) -> None:
    drawn = chart()
    assert "nan" not in drawn
    assert "inf" not in drawn


@pytest.mark.skipif(BROWSER is None, reason="no chromium installed: the page was not opened in a browser")
def test_page_in_a_browser(page: str, tmp_path: Path) -> None:
    watched = page.replace(
        "<head>", "<head><script>errors = []; onerror = m => errors.push(m); console.error = onerror;</script>", 1
    )
    harness = tmp_path / "harness.html"
    harness.write_text(HARNESS % json.dumps(watched).replace("</", "<\\/"))
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", harness.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    (title,) = re.findall(r"<title>(.*?)</title>", dom)
    found: dict[str, dict[str, Any]] = json.loads(html.unescape(title))
    assert set(found) == {"360", "1200"}
    for result in found.values():
        assert result["errors"] == []
        assert result["overflow"] <= 0
        assert result["charts"] > 15
        assert (result["before"], result["after"]) == (["sample0"], ["sample2"])
        assert result["light"] != result["dark"]
        assert (result["foot"], result["head"]) == (True, True), "head and foot of a long table are always in sight"
        assert result["empty"] < 10, "a raster takes all the room beside its image"


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(result.exception, ValueError)
    assert "is not the folder of a run" in str(result.exception)


def test_render_needs_only_plain_data(run: Path) -> None:
    from rheobase.tasks.inspect import inspect_run

    data = json.loads(json.dumps(inspect_run(Run(run), images=9)))
    assert render(data).startswith("<!doctype html>")
    assert "on digits," in render(data)
    assert "on digits (simulated recordings)," in render(data | {"simulated": True})
    held_out = data | {"recipe": data["recipe"] | {"holdout": 100}}
    assert "on digits, tested on held-out training images," in render(held_out)
    assert "held-out" not in render(data)
