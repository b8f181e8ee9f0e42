"""Time and memory of a training step of ResNet-19, ours and others', in one run.

python -m benchmarks.step                          everybody, T = 4
python -m benchmarks.step --only rheobase-speed spikingjelly --sweep timesteps
"""

import argparse
import json
import platform
import re
import shlex
import statistics
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib import metadata
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.contenders import CONTENDERS, FLOOR, Setting
from benchmarks.measure import serve

OURS = "rheobase-speed"
SWEPT_TIMESTEPS = (1, 2, 4, 6, 8, 16, 40)
_PATIENCE = 400  # seconds for one answer; a compiler may need minutes
_ATTEMPTS = 3  # disturbed rounds are played again, up to this many times as many rounds in all


class Worker:
    """A contender in its own process."""

    def __init__(self, name: str, setting: Setting) -> None:
        context = get_context("spawn")
        self.name, self.setting = name, setting
        self.connection, other = context.Pipe()
        self.process: BaseProcess = context.Process(target=serve, args=(other, name, setting), daemon=True)
        self.process.start()
        other.close()
        self.facts: dict[str, Any] = {}
        self.rounds: list[dict[str, Any]] = []

    def ask(self, request: str) -> dict[str, Any]:
        try:
            self.connection.send(request)
            if self.connection.poll(_PATIENCE):
                return self.connection.recv()
            return {"error": f"no answer within {_PATIENCE} s"}
        except (EOFError, OSError):
            self.process.join()
            return {"error": f"the process ended with code {self.process.exitcode}"}

    def stop(self) -> None:
        self.process.terminate()  # it holds nothing that needs care, and may be stuck
        self.process.join()

    def result(self, floor: float | None) -> dict[str, Any]:
        good = [r["seconds"] for r in self.rounds if not r["disturbed"]]
        chosen = good or [r["seconds"] for r in self.rounds]
        units = self.setting.batch * self.setting.timesteps
        seconds = statistics.median(chosen)
        return {
            "us_per_image_timestep": seconds / units * 1e6,
            "us_lowest": min(chosen) / units * 1e6,
            "us_highest": max(chosen) / units * 1e6,
            "images_per_second": self.setting.batch / seconds,
            "ratio_to_floor": None if floor is None else seconds / floor,
            "rounds": len(chosen),
            "disturbed_rounds": len(self.rounds) - len(good),
            "only_disturbed": not good,
            **self.facts,
            "seconds": [r["seconds"] for r in self.rounds],
        }


def compare(names: list[str], setting: Setting, rounds: int, console: Console) -> dict[str, Any]:
    """Measure the contenders of one setting, all together where memory allows, else in several groups."""
    done: dict[str, Worker] = {}
    skipped: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        workers = [Worker(name, setting) for name in waiting]
        waiting = []
        try:
            ready = []
            for worker in workers:
                console.print(f"T = {setting.timesteps}, N = {setting.batch}: preparing {worker.name}")
                answer = worker.ask("prepare")
                if "error" not in answer:
                    worker.facts = answer
                    ready.append(worker)
                    continue
                worker.stop()
                if answer.get("out_of_memory") and ready:  # there may be room once these are gone
                    waiting.append(worker.name)
                else:
                    skipped[worker.name] = answer["error"]
            _play(ready, rounds, skipped, console)
            done |= {worker.name: worker for worker in ready if worker.rounds}
        finally:
            for worker in workers:
                worker.stop()
    floor = done[FLOOR].result(None)["us_per_image_timestep"] if FLOOR in done else None
    per_step = None if floor is None else floor * setting.batch * setting.timesteps / 1e6
    results = {name: done[name].result(per_step) for name in names if name in done}
    return {"setting": asdict(setting), "results": results, "skipped": skipped}


def _play(workers: list[Worker], rounds: int, skipped: dict[str, str], console: Console) -> None:
    for number in range(_ATTEMPTS * rounds):
        short = [w for w in workers if sum(not r["disturbed"] for r in w.rounds) < rounds and w.name not in skipped]
        if not short:
            return
        console.print(f"round {number + 1}")
        for worker in short:
            answer = worker.ask("round")
            if "error" in answer:
                skipped[worker.name] = answer["error"]
                worker.rounds.clear()
            else:
                worker.rounds.append(answer)


def step_table(run: dict[str, Any]) -> Table:
    """One setting: a row for each contender."""
    setting, results = run["setting"], run["results"]
    title = f"Training step of {setting['network']}, T = {setting['timesteps']}, N = {setting['batch']}"
    table = Table(title=title, title_justify="left")
    table.add_column("contender")
    table.add_column("what")
    for heading in ("us / image / step", "lowest - highest", "images / s", "peak GiB", "x floor", f"x {OURS}"):
        table.add_column(heading, justify="right")
    ours = results.get(OURS, {}).get("us_per_image_timestep")
    for name, r in results.items():
        what = "convolutions and linear layers alone" if name == FLOOR else CONTENDERS[name].what
        if r.get("graph"):
            what += " (CUDA graph)"
        if r["only_disturbed"]:
            what += " (all rounds disturbed by other load)"
        table.add_row(
            name,
            what,
            f"{r['us_per_image_timestep']:.1f}",
            f"{r['us_lowest']:.1f} - {r['us_highest']:.1f}",
            f"{r['images_per_second']:,.0f}" if r["images_per_second"] > 100 else f"{r['images_per_second']:.2f}",
            f"{r['peak_bytes'] / 2**30:.2f}" if "peak_bytes" in r else "-",
            "-" if r["ratio_to_floor"] is None else f"{r['ratio_to_floor']:.2f}",
            "-" if ours is None else f"{r['us_per_image_timestep'] / ours:.2f}",
        )
    return table


def sweep_table(runs: list[dict[str, Any]], names: list[str]) -> Table:
    """Several settings: a row for each contender, a column for each setting, us per image and timestep in the cells."""
    table = Table(title="us per image and timestep (peak GiB)", title_justify="left")
    table.add_column("contender")
    for run in runs:
        table.add_column(f"T = {run['setting']['timesteps']}\nN = {run['setting']['batch']}", justify="right")
    for name in names:
        cells = []
        for run in runs:
            r = run["results"].get(name)
            peak = f" ({r['peak_bytes'] / 2**30:.1f})" if r and "peak_bytes" in r else ""
            cells.append(f"{r['us_per_image_timestep']:.1f}{peak}" if r else "skipped")
        table.add_row(name, *cells)
    return table


def swept(setting: Setting, sweep: str | None) -> list[Setting]:
    """The settings of a sweep: timesteps at the same T * N, so the same work; or batch sizes around the given one."""
    if sweep == "timesteps":
        total = setting.timesteps * setting.batch
        return [replace(setting, timesteps=t, batch=max(1, round(total / t))) for t in SWEPT_TIMESTEPS]
    if sweep == "batch":
        return [replace(setting, batch=max(1, setting.batch * 2**k // 8)) for k in range(5)]
    return [setting]


def environment(device: str) -> dict[str, Any]:
    versions = {}
    for package in ("rheobase", "torch", "triton", "spikingjelly", "snntorch"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "benchmarks.step", *sys.argv[1:]]),
        "device": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "cuda": torch.version.cuda if device == "cuda" else None,
        "cudnn": torch.backends.cudnn.version() if device == "cuda" else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return found[1] if found else platform.processor() or "CPU"


def main() -> None:
    names = [FLOOR, *CONTENDERS]
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description="Time and memory of a training step, ours and others'.")
    parser.add_argument("--timesteps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256 if gpu else 8)
    parser.add_argument("--rounds", type=int, default=10 if gpu else 5)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help=f"any of {', '.join(names)}")
    parser.add_argument("--sweep", choices=("timesteps", "batch"), help="time against T (at the same T * N) or batch")
    parser.add_argument("--out", type=Path, help="JSON file; results/step-<device>.json if not given")
    options = parser.parse_args()

    device = "cuda" if gpu else "cpu"
    chosen = [name for name in names if options.only is None or name in {FLOOR, *options.only}]
    settings = swept(Setting(options.timesteps, options.batch, device), options.sweep)
    facts = environment(device)
    label = re.sub(r"[^a-z0-9]+", "-", facts["device"].lower()).strip("-") if gpu else "cpu"
    out = options.out or Path("results") / f"{'-'.join(filter(None, ('step', label, options.sweep)))}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 140)
    progress = Console(stderr=True, style="dim")

    runs: list[dict[str, Any]] = []
    for setting in settings:
        runs.append(compare(chosen, setting, options.rounds, progress))
        out.write_text(json.dumps({"environment": facts, "runs": runs}, indent=1) + "\n")
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
