"""The results of `tasks.compare` as one HTML page."""

from collections.abc import Mapping, Sequence
from typing import Any

from rheobase.report import svg
from rheobase.report.layout import ENERGY_NOTE, document, duration, joule, section, table

HEADINGS = (
    "row", "name", "runs", "last epoch, %", "best epoch, %", "T", "training time", "spikes per neuron and timestep",
    "energy per image",
)  # fmt: skip


def render(data: Mapping[str, Any]) -> str:
    """Return the page."""
    rows = data["rows"]
    tested = {i: row for i, row in enumerate(rows, 1) if row["accuracy_last"]}
    facts = {"runs": str(sum(len(row["runs"]) for row in rows))}
    if tested:
        best = max(tested.values(), key=lambda row: row["accuracy_last"]["mean"])
        facts["highest accuracy, last epoch"] = f"{percent(best['accuracy_last'])} %"
    return document(
        "Comparison of runs",
        "Accuracy after the last epoch comes first, the best epoch second. Several seeds: mean and sample deviation.",
        facts,
        [
            section("The runs", _sentences(notes(data)), _runs(rows), "wide runs"),
            section("Settings that differ", "The others are the same in every row.", _settings(data), "wide settings"),
            _curves(tested),
            _against("seconds", "Accuracy against time", "training time, s", tested, 1.0),
            _against("joule", "Accuracy against energy", "energy per image, uJ", tested, 1e6),
        ],
    )


def percent(spread: Mapping[str, Any] | None) -> str:
    """Return an accuracy in percent with its deviation, or a dash if it is unknown."""
    if spread is None:
        return "-"
    deviation = "" if spread["deviation"] is None else f" +- {100 * spread['deviation']:.2f}"
    return f"{100 * spread['mean']:.2f}{deviation}"


def name(row: Mapping[str, Any]) -> str:
    """Return where the runs of a row are, and their seeds."""
    seeds = ", ".join(str(run["seed"]) for run in row["runs"])
    return f"{row['name']}, seed{'s' if len(row['runs']) > 1 else ''} {seeds}"


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a row, from the number of its runs on."""
    seconds, rate, energy = (row[key] and row[key]["mean"] for key in ("seconds", "firing_rate", "joule"))
    return [
        str(len(row["runs"])),
        percent(row["accuracy_last"]),
        percent(row["accuracy_best"]),
        str(row["settings"]["timesteps"]),
        "-" if seconds is None else duration(seconds),
        "-" if rate is None else f"{rate:.3f}",
        "-" if energy is None else joule(energy),
    ]


def notes(data: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know about the numbers, as sentences."""
    rows_of: dict[str, list[int]] = {}
    for i, row in enumerate(data["rows"], 1):
        if row["epochs"] < row["settings"]["epochs"]:
            rows_of.setdefault(f" at epoch {row['epochs']} of {row['settings']['epochs']}", []).append(i)
        if row["settings"]["holdout"]:
            what = " measured on held-out training images, not on the test images"
            rows_of.setdefault(what, []).append(i)
        if row["runs"][0]["not_known"]:
            rows_of.setdefault(f": {row['runs'][0]['not_known']}", []).append(i)
    found = [_of_rows(rows, what) for what, rows in rows_of.items()]
    if any(row["joule"] for row in data["rows"]):
        found.append(ENERGY_NOTE)
    if data["simulated"]:
        found.append("simulated recordings say nothing about real ones")
    return found


def _sentences(found: Sequence[str]) -> str:
    return " ".join(f"{note[0].upper()}{note[1:]}." for note in found)


def _of_rows(rows: Sequence[int], what: str) -> str:
    """What is so of these rows, as a sentence that names them; it begins with a colon where it needs no verb."""
    one = len(rows) == 1
    verb = "" if what.startswith(":") else " is" if one else " are"
    return f"{'row' if one else 'rows'} {spans(rows)}{verb}{what}"


def spans(numbers: Sequence[int]) -> str:
    """1, 2, 3, 5 -> 1 to 3 and 5."""
    ends: list[list[int]] = []
    for number in numbers:
        if ends and ends[-1][-1] + 1 == number:
            ends[-1].append(number)
        else:
            ends.append([number])
    parts = [part for span in ends for part in (map(str, span) if len(span) < 3 else [f"{span[0]} to {span[-1]}"])]
    return " and ".join([*([", ".join(parts[:-1])] if len(parts) > 1 else []), parts[-1]])


def _runs(rows: Sequence[Mapping[str, Any]]) -> str:
    return table(HEADINGS, ([str(i), name(row), *cells(row)] for i, row in enumerate(rows, 1)))


def _settings(data: Mapping[str, Any]) -> str:
    found = data["differing_settings"]
    if not found:
        return "<p>none</p>"
    headings = ["setting", *(str(i) for i in range(1, len(data["rows"]) + 1))]
    return table(headings, ([setting, *map(_text, values)] for setting, values in found.items()))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _curves(tested: Mapping[int, Mapping[str, Any]]) -> str:
    series, bands = {}, {}
    for number, row in tested.items():
        label, points = f"{number}: {row['name']}", row["accuracy_by_epoch"]
        means = [100 * point["accuracy"]["mean"] for point in points]
        series[label] = ([point["epoch"] for point in points], means)
        if len(row["runs"]) > 1:
            around = [100 * (point["accuracy"]["deviation"] or 0.0) for point in points]
            pairs = list(zip(means, around, strict=True))
            bands[label] = ([m - d for m, d in pairs], [m + d for m, d in pairs])
    chart = svg.line_chart(series, "epoch", "test accuracy, %", bands=bands)
    return section("Learning curves", "Mean over seeds. The band is their deviation.", chart)


def _against(key: str, title: str, x: str, tested: Mapping[int, Mapping[str, Any]], unit: float) -> str:
    points = {}
    for number, row in tested.items():
        if row[key]:
            found, deviation = row["accuracy_last"], row["accuracy_last"]["deviation"] or 0.0
            points[number] = (row["name"], unit * row[key]["mean"], 100 * found["mean"], 100 * deviation)
    return section(title, "After the last epoch. Numbers are rows of the table.", svg.scatter(points, x, "accuracy, %"))
