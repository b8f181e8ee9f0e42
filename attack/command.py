"""Run a short training command in forks of this process, which has imported everything, so it starts at once.

Disturbances are set up in the fork before the command starts.
"""

import errno
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import NoReturn

import torch

from rheobase.cli import main

PATIENCE = 60.0  # seconds until a process counts as hanging
FEW = Path(__file__).with_name("few.py")
EPOCHS = 4
SETTINGS = ("data=few_digits", "batch_size=23", "timesteps=1", "width=0.25")
EVENTS = {"open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir", "os.utime"}
WRITING = os.O_WRONLY | os.O_RDWR

Prepare = Callable[[], None]


def words(folder: Path, epochs: int = EPOCHS) -> list[str]:
    """Return the arguments of the command, which starts the run in `folder` or continues it."""
    settings = [f"--set={setting}" for setting in (*SETTINGS, f"epochs={epochs}")]
    how = ["--keep-best", "--save-every=0", "--device=cpu", "--patience=20", "--continue"]
    return ["train", "demo", f"--plugin={FEW}", *settings, *how, f"--out={folder}"]


@dataclass
class Ended:
    """How a process ended."""

    code: int
    """Exit code, or minus the number of the signal that killed it."""
    errors: str
    seconds: float


@dataclass
class Job:
    """The processes of one command: one, or a team of `world`."""

    folder: Path
    world: int = 1
    prepare: Prepare = lambda: None
    """What each process does before the command starts."""
    began: float = field(default_factory=time.monotonic)
    members: list[tuple[int, int]] = field(default_factory=list)
    """The id of every process, and a descriptor to read its stderr."""

    def __post_init__(self) -> None:
        port = _free_port() if self.world > 1 else 0
        for rank in range(self.world):
            read, write = os.pipe()
            sys.stdout.flush()
            sys.stderr.flush()
            if not (pid := os.fork()):
                _run(words(self.folder), _environment(rank, self.world, port), write, self.prepare)
            os.close(write)
            self.members.append((pid, read))

    def send(self, number: int, *ranks: int) -> None:
        """Send a signal to these processes, by default to all."""
        for rank in ranks or range(self.world):
            os.kill(self.members[rank][0], number)  # the id of an ended process stays valid until `ended` is called

    def ended(self) -> list[Ended | None]:
        """Wait for all processes and return how each ended; None for one that hung and was killed."""
        found = [self._end(*member) for member in self.members]
        self.members.clear()
        return found

    def _end(self, pid: int, errors: int) -> Ended | None:
        while not (status := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            if time.monotonic() - self.began > PATIENCE:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                os.close(errors)
                return None
            time.sleep(0.002)
        os.waitpid(pid, 0)
        with open(errors, "rb") as file:
            said = file.read().decode(errors="replace")
        code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        return Ended(code, said, time.monotonic() - self.began)


def _environment(rank: int, world: int, port: int) -> dict[str, str]:
    if world == 1:
        return {}
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in own.items()}}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _run(arguments: list[str], environment: dict[str, str], errors: int, prepare: Prepare) -> NoReturn:
    """Run the command in the fork, and end as a separate process would."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ |= environment
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(errors, 2)
        os.close(errors)  # only the usual descriptors stay open
        sys.argv = ["rheobase", *arguments]
        prepare()
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def warm_up() -> None:
    """Import what the command needs. Never start threads of torch, which a fork would not have."""
    torch.set_num_threads(1)
    for name in ("numpy.random", "rheobase.kernels.cpu", "rheobase.train.plan", "rheobase.train.standing"):
        import_module(name)
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # a plot of the metrics takes longer than the run


# ---- disturbances


def at_operation(folder: Path, number: int, act: Callable[[], None], *, writing: bool = False) -> Prepare:
    """Call `act` before file operation `number` in `folder` and every later one. The first operation is 1.

    If `writing`, count only operations that write.
    """

    def prepare() -> None:
        done = count(1)

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            counts = event in EVENTS and _within(folder, arguments[0]) and not (writing and _reads(event, arguments))
            if counts and next(done) >= number:
                act()

        sys.addaudithook(hook)

    return prepare


def _within(folder: Path, path: object) -> bool:
    """Return whether the path is in the folder. While a folder is removed, its files have names without a folder."""
    if not isinstance(path, str | os.PathLike):
        return False
    name = os.fspath(path)
    return isinstance(name, str) and (name.startswith(str(folder)) or "/" not in name)


def _reads(event: str, arguments: tuple[object, ...]) -> bool:
    if event == "open":
        flags = arguments[2]
        return not (isinstance(flags, int) and flags & WRITING)
    return event in ("os.listdir", "os.scandir")


def kill() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def failing(number: int) -> Callable[[], None]:
    """Return a function that raises this error of the system."""

    def act() -> None:
        raise OSError(number, os.strerror(number))

    return act


def no_space(folder: Path, number: int) -> Prepare:
    """Let the disk be full from this write operation on."""
    return at_operation(folder, number, failing(errno.ENOSPC), writing=True)


def read_only(folder: Path, number: int) -> Prepare:
    """Let the folder be read-only from this write operation on."""
    return at_operation(folder, number, failing(errno.EROFS), writing=True)


def short_files(size: int, *, killed: bool) -> Prepare:
    """Let no file grow beyond `size` bytes: a write that would exceed it fails, or kills the process."""

    def prepare() -> None:
        if killed:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return prepare


def few_descriptors(number: int) -> Prepare:
    """Allow only this many more open files than there are now."""

    def prepare() -> None:
        used = {int(name) for name in os.listdir("/proc/self/fd")}
        free = [descriptor for descriptor in range(len(used) + number + 1) if descriptor not in used]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[number], free[number]))

    return prepare


def little_memory(size: int) -> Prepare:
    """Allow only this many more bytes of memory than are in use now."""

    def prepare() -> None:
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + size, now + size))

    return prepare
