from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rheobase.report import plots
from rheobase.report.charts import Chart
from rheobase.train.progress import Reporter
from rheobase.train.tensorboard import TensorBoard


def rows(count: int) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [
        {"epoch": e, "step": 7 * e, "loss": 2 / e, "train_accuracy": 1 - 0.5 / e, "firing_rates": {"soma": 0.1 * e}}
        for e in range(1, count + 1)
    ]
    for row in made[1::2]:  # not every epoch is evaluated
        row |= {"test_loss": 3 / row["epoch"], "test_accuracy": 0.5}
    return made


def test_plot_is_a_picture(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="plots need matplotlib")
    plots.learning_curves(rows(5), tmp_path / "curves.png")
    pixels = image.imread(tmp_path / "curves.png")
    assert pixels.shape[:2] == (420, 1080)
    assert pixels[..., :3].std() > 0.05


def test_ticks_are_whole_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_save", lambda picture, path: drawn.append(picture))
    plots.learning_curves(rows(4), tmp_path / "curves.png")
    for axes in drawn[0].axes:
        assert all(tick == int(tick) for tick in axes.get_xticks())


def test_a_link_in_the_folder_of_a_run_is_not_followed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "curves.png").symlink_to(tmp_path / "mine")
    plots.learning_curves(rows(3), tmp_path / "curves.png")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_bars_have_labels_that_fit() -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    axes = plots.figure(5, 4).subplots()
    numbers, heights = list(range(1, 34)), [1.0] * 33
    plots._chart(axes, Chart("a", "layer", "rate", {"spikes": (numbers, heights)}, bars=True))
    assert [label.get_text() for label in axes.get_xticklabels()] == [str(n) for n in range(1, 34, 2)]
    plots._legend(axes, Chart("a", "layer", "rate", {"spikes": (numbers, heights)}, bars=True))
    assert axes.get_legend() is None


OPERATIONS = {
    name: (["additions", "multiplications"], values) for name, values in (("here", [5e6, 8.0]), ("paper", [4e6, nan]))
}


def test_bars_with_words_lie_with_their_values_at_their_ends() -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    axes = plots.figure(5, 4).subplots()
    plots._bars_of_words(axes, Chart("b", "", "operations", OPERATIONS, bars=True))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["additions", "multiplications"]
    here, paper = ([(bar.get_width(), bar.get_y()) for bar in group] for group in axes.containers)
    assert [width for width, _ in here] == [5e6, 8.0]
    assert here[0][1] < paper[0][1] < here[1][1], "in the order of the chart"
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "from the top"
    assert [text.get_text() for text in axes.texts] == ["5.00e+06", "8.00", "4.00e+06", ""], "no bar for the unknown"
    assert axes.get_xlabel() == "operations"


def test_a_legend_covers_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    lines = {f"{'a long name ' * 3}{i}": ([1, 2, 3], [1.0, 2.0, i]) for i in range(5)}
    for draw, chart in (
        (plots._chart, Chart("a", "layer", "rate", lines)),
        (plots._bars_of_words, Chart("b", "", "operations", OPERATIONS, bars=True)),
    ):
        picture = plots.figure(5, 4)
        axes = picture.subplots()
        draw(axes, chart)
        plots._legend(axes, chart)
        picture.savefig(tmp_path / "drawn.png")  # places everything
        box, name, legend = (
            part.get_window_extent() for part in (axes, axes.xaxis.label, axes.get_legend().get_frame())
        )
        assert 0 <= legend.y0 < legend.y1 < name.y0 < name.y1 < box.y0
        assert 0 <= legend.x0 < legend.x1 <= picture.bbox.width


def test_bars_with_words_stand_below_each_other_on_one_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_save", lambda picture, path: drawn.append(picture))
    groups = {"depth": ["8", "20", "50"], "decay": ["0", "0.5"]}
    charts = [Chart(g, "", "%", {"": (ls, [10.0 * len(ls)] * len(ls))}, bars=True) for g, ls in groups.items()]
    plots.draw("ablation", "Ablation", charts, tmp_path)
    first, second = drawn[0].axes
    assert first.get_position().y0 > second.get_position().y1
    assert first.get_xlim() == second.get_xlim()
    assert (first.get_xlabel(), second.get_xlabel()) == ("", "%")
    lines = [Chart(str(i), "x", "y", {"": ([1, 2], [1.0, 2.0])}) for i in range(2)]
    plots.draw("lines", "Lines", lines, tmp_path)
    left, right = drawn[-1].axes
    assert left.get_position().x1 < right.get_position().x0
    assert (left.get_xlabel(), right.get_xlabel()) == ("x", "x")


def drawn_together(monkeypatch: pytest.MonkeyPatch, charts: list[Chart]) -> Any:
    """The picture of these charts."""
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_save", lambda picture, path: drawn.append(picture))
    plots.draw("lines", "Lines", charts, Path())
    return drawn[0]


def test_charts_of_the_same_lines_share_a_legend(monkeypatch: pytest.MonkeyPatch) -> None:
    series = {name: ([1, 2], [1.0, 2.0]) for name in ("a", "b")}
    same = drawn_together(monkeypatch, [Chart(title, "x", "y", series) for title in ("left", "right")])
    assert [axes.get_legend() for axes in same.axes] == [None, None]
    (legend,) = same.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    others = [Chart("left", "x", "y", series), Chart("right", "x", "y", series | {"c": ([1, 2], [3.0, 4.0])})]
    different = drawn_together(monkeypatch, others)
    assert different.legends == []
    assert [len(axes.get_legend().get_texts()) for axes in different.axes] == [2, 3]


def test_looks_of_lines_and_points(monkeypatch: pytest.MonkeyPatch) -> None:
    series = {name: ([1, 2], [1.0, 2.0]) for name in ("points", "line", "other")}
    chart = Chart("", "x", "y", series, low=0.5, mark=("threshold", 1.5), looks={"points": (2, None), "line": (0, 1)})
    (axes,) = drawn_together(monkeypatch, [chart]).axes
    points, line, other, mark = axes.lines
    assert (points.get_linestyle(), points.get_marker(), points.get_color()) == ("None", "o", plots.COLOURS[2])
    assert (line.get_linestyle(), line.get_color()) == ("--", plots.COLOURS[0])
    assert (other.get_linestyle(), other.get_color()) == (":", plots.COLOURS[2]), "by its place"
    assert [*mark.get_xdata()] == [1.5, 1.5]
    assert axes.get_ylim()[0] == 0.5
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["points", "line", "other", "threshold"]


def test_six_lines_differ_in_their_dashes(monkeypatch: pytest.MonkeyPatch) -> None:
    series = {str(i): ([1, 2], [float(i), 2.0]) for i in range(6)}
    (axes,) = drawn_together(monkeypatch, [Chart("", "x", "y", series)]).axes
    assert len({str(line._unscaled_dash_pattern) for line in axes.lines}) == 6


@pytest.mark.parametrize("highest", [2.7, 40.0, 3e3])
def test_a_logarithmic_axis_has_several_numbers(monkeypatch: pytest.MonkeyPatch, highest: float) -> None:
    chart = Chart("", "layer", "norm", {"": ([1, 2], [1.0, highest])}, log=True)
    (axes,) = drawn_together(monkeypatch, [chart]).axes
    axes.figure.canvas.draw()
    low, high = axes.get_ylim()
    shown = [label.get_text() for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert len(shown) >= 4
    assert all(low <= float(number) <= high for number in shown)


def test_a_picture_is_small_and_keeps_its_colours(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="plots need matplotlib")
    *_, path = plots.draw("small", "Small", [Chart("", "x", "y", {"": ([1, 2], [1.0, 2.0])})], tmp_path)
    picture = image.open(path)
    assert picture.mode == "P", "with a palette"
    colours = {colour for _, colour in picture.convert("RGB").getcolors(1000)}
    assert any(max(abs(a - b) for a, b in zip(c, (0x00, 0x72, 0xB2), strict=True)) < 6 for c in colours)


def test_a_long_title_stays_inside_the_picture(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="plots need matplotlib")
    title = "Fig. 6: spikes per neuron (1024 test images of cifar10, trained network, T = 6)"
    chart = Chart("", "layer", "rate", {"spikes": ([1, 2], [1.0, 2.0])}, bars=True)
    *_, path = plots.draw("long", title, [chart], tmp_path)
    pixels = image.imread(path)[:30, :, :3]  # above the frame of the chart
    assert pixels.min() < 0.5, "there is a title"
    assert pixels[:, :6].min() > 0.9
    assert pixels[:, -6:].min() > 0.9


class Heard(Reporter):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self, folder: Path, epochs: int, steps: int, done: int) -> None:
        self.calls.append("start")

    def epoch(self, row: dict[str, Any]) -> None:
        self.calls.append("epoch")

    def stop(self) -> None:
        self.calls.append("stop")


def test_tensorboard_gets_every_scalar_once_also_after_a_resume(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard")
    four = rows(4)
    for done, part in ((0, four[:3]), (14, four[2:])):  # stopped after an epoch that was not saved
        heard = Heard()
        board = TensorBoard(heard)
        board.start(tmp_path, 4, 7, done)
        for row in part:
            board.epoch(row)
        board.stop()
        assert heard.calls == ["start", *["epoch"] * len(part), "stop"]
    events = reader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(events.Tags()["scalars"]) == {
        "loss", "train_accuracy", "test_loss", "test_accuracy", "firing_rate/soma",
    }  # fmt: skip
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [
        (row["step"], pytest.approx(row["loss"])) for row in four
    ]


def test_recordings_are_drawn_in_rows(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="plots need matplotlib")
    seen = {"picture": np.arange(2 * 6 * 6).reshape(2, 6, 6) % 5, "rates": [3.0, 0.0, 5.0], "seconds": 1.5}
    for name in ("one", "two"):
        plots.recordings([(name, seen)] * len(name), tmp_path / f"{name}.png")
    assert image.imread(tmp_path / "two.png").shape[:2] == (3 * 384, 1080)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["one.png", "two.png"]
    plots.recordings([("one", seen)], tmp_path / "one.svg")
    assert "<svg" in (tmp_path / "one.svg").read_text()


@pytest.mark.parametrize(("xs", "shown"), [([1, 2, 512], "64"), ([0.5, 2, 512], "100")])
def test_counts_that_double_have_an_axis_of_their_own(xs: list[float], shown: str) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    axes = plots.figure(4, 3).subplots()
    plots._chart(axes, Chart("", "timesteps", "%", {"": (xs, [1.0, 2.0, 3.0])}, log_x=True))
    axes.figure.canvas.draw()
    assert any(tick.get_text() == shown for tick in axes.get_xticklabels())
