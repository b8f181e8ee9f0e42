"""Measure time and memory of a training step of ours and other libraries in one run; by default of ResNet-19.

python -m benchmarks.step                          all contenders, T = 4
python -m benchmarks.step --network resnet50       the same for images of 224 pixels; also resnet34
python -m benchmarks.step --only rheobase-speed spikingjelly --sweep timesteps
python -m benchmarks.step --only rheobase-speed --before OTHER_CHECKOUT       our step now and before
python -m benchmarks.step --variants --before OTHER_CHECKOUT                  the same, and our other neurons
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import checkouts
from benchmarks.contenders import BEFORE, CONTENDERS, FLOOR, USUAL, USUALLY, VARIANTS, Setting, contender
from benchmarks.measure import ATTEMPTS
from benchmarks.output import result_path
from rheobase.train.record import write_result
from rheobase.train.sources import tree_id

NETWORK = "resnet19"
OURS = "rheobase-speed"
SWEPT_TIMESTEPS = (1, 2, 4, 6, 8, 16, 40)
_PATIENCE = 400  # seconds to wait for an answer; a compiler may need minutes


class Worker:
    """A contender in its own process, which runs the package in `source`; by default this package."""

    def __init__(self, name: str, setting: Setting, source: Path | None = None) -> None:
        self.name, self.setting = name, setting
        self.connection, other = Pipe()
        command = [sys.executable, "-m", "benchmarks.worker", str(other.fileno()), name, json.dumps(asdict(setting))]
        self.process = subprocess.Popen(command, pass_fds=[other.fileno()], env=checkouts.environment(source))
        other.close()
        self.facts: dict[str, Any] = {}
        self.rounds: list[dict[str, Any]] = []

    def ask(self, request: str) -> dict[str, Any]:
        """Send a request and return the answer."""
        try:
            self.connection.send(request)
            if self.connection.poll(_PATIENCE):
                return self.connection.recv()
            return {"error": f"no answer within {_PATIENCE} s"}
        except (EOFError, OSError):
            return {"error": f"the process ended with code {self.process.wait()}"}

    def stop(self) -> None:
        """End the process."""
        self.process.kill()  # it has nothing to save, and may hang
        self.process.wait()
        self.connection.close()

    def seconds(self) -> float:
        """Return the median seconds of a step."""
        return statistics.median(self._counted())

    def result(self, floor: float | None) -> dict[str, Any]:
        """Return the results; `floor` is the seconds of the convolutions and linear layers alone."""
        counted, seconds = self._counted(), self.seconds()
        units = self.setting.batch * self.setting.timesteps
        disturbed = sum(r["disturbed"] for r in self.rounds)
        return {
            "us_per_image_timestep": seconds / units * 1e6,
            "us_lowest": min(counted) / units * 1e6,
            "us_highest": max(counted) / units * 1e6,
            "images_per_second": self.setting.batch / seconds,
            "ratio_to_floor": None if floor is None else seconds / floor,
            "rounds": len(counted),
            "disturbed_rounds": disturbed,
            "only_disturbed": disturbed == len(self.rounds),
            **self.facts,
            "seconds": [r["seconds"] for r in self.rounds],
        }

    def _counted(self) -> list[float]:
        """Return the undisturbed rounds; all rounds if there is none."""
        good = [r["seconds"] for r in self.rounds if not r["disturbed"]]
        return good or [r["seconds"] for r in self.rounds]


def compare(
    names: list[str], setting: Setting, rounds: int, console: Console, before: Path | None = None
) -> Iterator[dict[str, Any]]:
    """Measure the contenders of one setting. Yield the results so far after every round.

    All take part together if memory allows, otherwise in several groups. `before` is the package for the contenders
    with that prefix.
    """
    known: list[Worker] = []
    skipped: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        workers = [Worker(name, setting, before if name.startswith(BEFORE) else None) for name in waiting]
        waiting = []
        try:
            ready: list[Worker] = []
            for worker in workers:
                console.print(f"T = {setting.timesteps}, N = {setting.batch}: preparing {worker.name}")
                answer = worker.ask("prepare")
                if "error" not in answer:
                    worker.facts = answer
                    ready.append(worker)
                    continue
                worker.stop()
                if answer.get("out_of_memory") and ready:  # it may fit when these have ended
                    waiting.append(worker.name)
                else:
                    skipped[worker.name] = answer["error"]
            known += ready
            for number in _play(ready, rounds, skipped):
                console.print(f"round {number}")
                yield _summary(names, setting, known, skipped)
        finally:
            for worker in workers:
                worker.stop()
    yield _summary(names, setting, known, skipped)


def _play(workers: list[Worker], rounds: int, skipped: dict[str, str]) -> Iterator[int]:
    """Ask for rounds in turn until all contenders have enough undisturbed ones, or no attempts are left."""
    for number in range(1, ATTEMPTS * rounds + 1):
        short = [w for w in workers if sum(not r["disturbed"] for r in w.rounds) < rounds and w.name not in skipped]
        if not short:
            return
        for worker in short:
            answer = worker.ask("round")
            if "error" in answer:
                skipped[worker.name] = answer["error"]
                worker.rounds.clear()
            else:
                worker.rounds.append(answer)
        yield number


def _summary(names: list[str], setting: Setting, known: list[Worker], skipped: dict[str, str]) -> dict[str, Any]:
    played = {worker.name: worker for worker in known if worker.rounds}
    floor = played[FLOOR].seconds() if FLOOR in played else None
    results = {name: played[name].result(floor) for name in names if name in played}
    return {"setting": asdict(setting), "results": results, "skipped": dict(skipped)}


def step_table(run: dict[str, Any]) -> Table:
    """Return the table of one setting, with a row for each contender."""
    setting, results = run["setting"], run["results"]
    title = f"Training step of {setting['network']}, T = {setting['timesteps']}, N = {setting['batch']}"
    disturbed = any(r["only_disturbed"] for r in results.values())
    table = Table(title=title, caption="* every round was disturbed by other load" if disturbed else None)
    table.add_column("contender", no_wrap=True)
    table.add_column("what")
    for heading in ("us / image / step", "lowest - highest", "images / s", "peak GiB", "x floor", f"x {OURS}"):
        table.add_column(heading, justify="right")
    ours = results.get(OURS, {}).get("us_per_image_timestep")
    for name, r in results.items():
        what = "convolutions and linear layers alone" if name == FLOOR else contender(name).what
        if r.get("graph"):
            what += " (CUDA graph)"
        table.add_row(
            name + ("*" if r["only_disturbed"] else ""),
            what,
            _number(r["us_per_image_timestep"]),
            f"{_number(r['us_lowest'])} - {_number(r['us_highest'])}",
            _number(r["images_per_second"]),
            f"{r['peak_bytes'] / 2**30:.2f}" if "peak_bytes" in r else "-",
            "-" if r["ratio_to_floor"] is None else f"{r['ratio_to_floor']:.2f}",
            "-" if ours is None else f"{r['us_per_image_timestep'] / ours:.2f}",
        )
    return table


def sweep_table(runs: list[dict[str, Any]], names: list[str]) -> Table:
    """Return us per image and timestep for several settings, with a row per contender and a column per setting."""
    table = Table(title="us per image and timestep (peak GiB)")
    table.add_column("contender")
    for run in runs:
        table.add_column(f"T = {run['setting']['timesteps']}\nN = {run['setting']['batch']}", justify="right")
    for name in names:
        cells = []
        for run in runs:
            r = run["results"].get(name)
            peak = f" ({r['peak_bytes'] / 2**30:.1f})" if r and "peak_bytes" in r else ""
            cells.append(_number(r["us_per_image_timestep"]) + peak if r else "skipped")
        table.add_row(name, *cells)
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def swept(setting: Setting, sweep: str | None) -> list[Setting]:
    """Return the settings of a sweep: timesteps at a constant T * N, so constant work; or batches around this one."""
    if sweep == "timesteps":
        total = setting.timesteps * setting.batch
        return [replace(setting, timesteps=t, batch=max(1, round(total / t))) for t in SWEPT_TIMESTEPS]
    if sweep == "batch":
        sizes = dict.fromkeys(max(1, setting.batch * 2**k // 8) for k in range(5))
        return [replace(setting, batch=size) for size in sizes]
    return [setting]


def main() -> None:
    names = [FLOOR, *CONTENDERS]
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description="Measure time and memory of a training step, ours and others'.")
    parser.add_argument("--timesteps", type=int, default=4)
    parser.add_argument("--batch", type=int, help="by default 256 (resnet34: 48, resnet50: 32), and 8 on a CPU")
    parser.add_argument("--rounds", type=int, default=10 if gpu else 5)
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=names,
        help=f"any of {', '.join(names)}; without a sweep, the floor is included",
    )
    parser.add_argument("--sweep", choices=("timesteps", "batch"), help="time against T (at the same T * N) or batch")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="also measure our contenders from there")
    parser.add_argument("--variants", action="store_true", help=f"also our other neurons; by default beside {OURS}")
    parser.add_argument("--network", default=NETWORK)
    parser.add_argument("--image-size", type=int, help="by default 32, and 224 for resnet34 and resnet50")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16" if gpu else "fp32")
    parser.add_argument("--out", type=Path, help="JSON file; by default results/step-<device>.json")
    options = parser.parse_args()

    device = "cuda" if gpu else "cpu"
    wanted = set(options.only or ([OURS] if options.variants else names)) | (set() if options.sweep else {FLOOR})
    chosen = [name for name in names if name in wanted]
    before = checkouts.source_folder(options.before) if options.before else None
    if before:
        chosen += [BEFORE + name for name in chosen if name.startswith("rheobase-")]
    if options.variants:
        chosen += VARIANTS
    usual = USUAL.get(options.network, USUALLY)
    batch, size = options.batch or (usual.batch if gpu else 8), options.image_size or usual.image_size
    setting = Setting(options.timesteps, batch, device, options.network, size, options.precision == "bf16")
    settings = swept(setting, options.sweep)
    network = None if options.network == NETWORK else options.network
    precision = options.precision if setting.half != gpu else None
    kinds = (network, precision, options.sweep, "neurons" if options.variants else None, "before" if before else None)
    out = options.out or result_path("step", torch.device(device), *kinds)
    console = Console(width=None if sys.stdout.isatty() else 140)
    progress = Console(stderr=True, style="dim")

    older = {"before": {"src": tree_id(before)}} if before else {}
    runs: list[dict[str, Any]] = []
    for setting in settings:
        runs.append({})
        to_come = len(settings) - len(runs)
        for runs[-1] in compare(chosen, setting, options.rounds, progress, before):
            write_result(out, {**older, "runs": runs}, to_come=to_come + 1, device=device, seed=0)
        write_result(out, {**older, "runs": runs}, to_come=to_come, device=device, seed=0)
    for run in runs if options.sweep is None else []:
        console.print(step_table(run))
    if options.sweep is not None:
        console.print(sweep_table(runs, chosen))
    for run in runs:
        for name, reason in run["skipped"].items():
            where = f" at T = {run['setting']['timesteps']}, N = {run['setting']['batch']}" if options.sweep else ""
            console.print(f"skipped {name}{where}: {reason}", markup=False, soft_wrap=True)
    console.print(f"written to {out}", soft_wrap=True)


if __name__ == "__main__":
    main()
