"""Build, check and time one contender in its own process, and measure its memory.

Separate processes keep memory apart and let one contender fail without the others. The parent asks for one round at a
time, so that the rounds of all contenders interleave.
"""

import contextlib
import gc
import os
import resource
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.contenders import BEFORE, FLOOR, Setting, contender, difference_from_law, floor_step, training_step
from benchmarks.peers import Unavailable
from rheobase import models
from rheobase.train.capture import CapturedStep, Step
from rheobase.train.heap import keep_freed_memory

_WARM_UP = 3
_TOLERANCE = 1e-9  # in float64, where rounding flips no spike
FOREIGN_LOAD = 0.05  # fraction of all cores that other processes may use in a round
ATTEMPTS = 3  # disturbed rounds are repeated, up to this many times as many rounds in total


@dataclass
class Trial:
    """A step that is ready to be timed, and the facts known before."""

    step: Step
    repeats: int
    facts: dict[str, Any]


def prepare(name: str, setting: Setting) -> Trial:
    """Build a contender, check what it claims, warm it up, capture it and measure its memory."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    facts: dict[str, Any] = {}
    if name == FLOOR:
        step, graph = floor_step(setting), True
        step()
    else:
        chosen = contender(name)
        if chosen.same and not name.startswith(BEFORE):  # another checkout has its own law
            facts["difference_from_law"] = difference = difference_from_law(chosen, setting)
            if not difference < _TOLERANCE:
                raise AssertionError(f"differs from the law by {difference:.1e} in its {chosen.same}")
        if setting.device == "cpu":
            keep_freed_memory()  # for all contenders, as in our training; not before the check, whose memory is freed
        net, forward = chosen.make(setting)
        facts["parameters"] = _count_parameters(net, setting, chosen.neuron)
        step, graph = training_step(net, forward, setting), chosen.graph
        _check_training(net, *step())
    for _ in range(_WARM_UP):
        step()
    _forget_peak(setting.device)
    if setting.device == "cuda":
        step = _captured_if_possible(step, facts) if graph else step
    seconds, _ = _timed(step, 1, setting.device)
    if name != FLOOR:
        facts["peak_bytes"] = _peak_bytes(setting.device)
    least = 0.25 if setting.device == "cuda" else 1.0  # seconds
    return Trial(step, max(1, round(least / seconds)), facts)


def play_round(trial: Trial, device: str) -> dict[str, Any]:
    """Return the seconds per step, and whether other processes disturbed the round."""
    load = Load()
    seconds, outputs = _timed(trial.step, trial.repeats, device)
    disturbed = device == "cpu" and load.foreign() > FOREIGN_LOAD
    if not all(output.isfinite() for output in outputs):
        raise AssertionError("the loss is no longer finite")
    return {"seconds": seconds, "disturbed": disturbed}


def serve(connection: Connection, name: str, setting: Setting) -> None:
    """Answer every request (`prepare` or `round`) with a dict. If it fails, the dict has an `error`."""
    trial: Trial | None = None
    while request := connection.recv():
        try:
            if request == "prepare":
                trial = prepare(name, setting)
                answer = trial.facts
            else:
                assert trial is not None
                answer = play_round(trial, setting.device)
        except Unavailable as reason:
            answer = {"error": str(reason)}
        except Exception as error:  # whatever a peer raises, the others continue
            traceback.print_exc(file=sys.stderr)
            answer = {"error": _one_line(error), "out_of_memory": _is_out_of_memory(error)}
        connection.send(answer)


def _captured_if_possible(step: Step, facts: dict[str, Any]) -> Step:
    captured = CapturedStep(step, eager_calls=1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "a step cannot be captured")  # it would go on eagerly
            captured()
            captured()
        torch.cuda.synchronize()
    except Exception as error:
        if _is_out_of_memory(error):
            raise
        traceback.print_exc(file=sys.stderr)
        facts["graph"], facts["graph_error"] = False, _one_line(error)
        return step
    facts["graph"] = True
    return captured


def _count_parameters(net: nn.Module, setting: Setting, neuron: dict[str, Any]) -> int:
    with torch.device("meta"):
        ours = models.build(setting.network, in_channels=3, image_size=setting.image_size, **neuron)
    expected, found = (sum(p.numel() for p in n.parameters()) for n in (ours, net))
    if found != expected:
        raise AssertionError(f"has {found} parameters instead of {expected}")
    return found


def _check_training(net: nn.Module, loss: Tensor) -> None:
    if not torch.isfinite(loss):
        raise AssertionError(f"the first loss is {loss.item()}")
    without = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    if without:
        raise AssertionError(f"{len(without)} parameters got no gradient, the first is {without[0]}")


def _timed(step: Step, repeats: int, device: str) -> tuple[float, tuple[Tensor, ...]]:
    """Return the seconds per step, and the last result. One more step runs first, as others used the caches."""
    step()
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            outputs = step()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / repeats, outputs
    started = time.perf_counter()
    for _ in range(repeats):
        outputs = step()
    return (time.perf_counter() - started) / repeats, outputs


def _forget_peak(device: str) -> None:
    """Reset the peak memory: compilation and the search for algorithms are not part of a step."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):  # only on Linux; elsewhere the peak counts from the start
            Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes(device: str) -> int:
    """Return the peak memory allocated on the GPU; on a CPU, the peak resident size of this process with libraries."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Load:
    """The fraction of all cores that other processes have used since; 0 if the system does not tell."""

    def __init__(self) -> None:
        self.started = self._now()

    def foreign(self) -> float:
        """Return the fraction since this object was created."""
        wall, busy, own = (b - a for a, b in zip(self.started, self._now(), strict=True))
        return max(0.0, busy - own) / (wall * (os.cpu_count() or 1))

    @staticmethod
    def _now() -> tuple[float, float, float]:
        stat, own = Path("/proc/stat"), time.process_time()
        if not stat.exists():
            return time.perf_counter(), own, own
        user, nice, system, _idle, _wait, irq, soft, stolen = map(int, stat.read_text().split(maxsplit=9)[1:9])
        busy = (user + nice + system + irq + soft + stolen) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy, own


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out. Not every library raises `torch.OutOfMemoryError`; some only say so in words."""
    return isinstance(error, MemoryError) or "out of memory" in str(error)


def _one_line(error: Exception) -> str:
    text = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {text}"[:200]
