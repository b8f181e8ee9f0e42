"""A short training by the command line, in copies of this process, which has imported everything: it starts at once.

What disturbs it is set up in the copy before it begins.
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
    """The command: it starts the run in `folder`, or goes on with it."""
    settings = [f"--set={setting}" for setting in (*SETTINGS, f"epochs={epochs}")]
    how = ["--keep-best", "--save-every=0", "--device=cpu", "--patience=20", "--continue"]
    return ["train", "demo", f"--plugin={FEW}", *settings, *how, f"--out={folder}"]


@dataclass
class Ended:
    code: int
    """As of a shell's $?, or minus the number of the signal that killed it."""
    errors: str
    seconds: float


@dataclass
class Job:
    """The processes of one command: one, or a team of `world`."""

    folder: Path
    world: int = 1
    prepare: Prepare = lambda: None
    """What each of them does before the command begins."""
    began: float = field(default_factory=time.monotonic)
    members: list[tuple[int, int]] = field(default_factory=list)
    """The id of every process, and where to read what it says on stderr."""

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
        for rank in ranks or range(self.world):
            os.kill(self.members[rank][0], number)  # one that has ended stays until somebody asks for its end

    def ended(self) -> list[Ended | None]:
        """How each of them ended; None for one that hangs, and is killed."""
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
    """In the copy: the command, and its end as a process of its own would meet it."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ |= environment
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(errors, 2)
        os.close(errors)  # the process has the usual descriptors
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
    """Import what the command needs; threads of torch, which a copy would not have, are never started."""
    torch.set_num_threads(1)
    for name in ("numpy.random", "rheobase.kernels.cpu", "rheobase.train.plan", "rheobase.train.standing"):
        import_module(name)
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # a picture of the metrics takes longer than the run


# ---- what disturbs it


def at_operation(folder: Path, number: int, act: Callable[[], None], *, writing: bool = False) -> Prepare:
    """Before the file operation `number` in `folder`, and every one after it: `act`. The first is 1."""

    def prepare() -> None:
        done = count(1)

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            counts = event in EVENTS and _within(folder, arguments[0]) and not (writing and _reads(event, arguments))
            if counts and next(done) >= number:
                act()

        sys.addaudithook(hook)

    return prepare


def _within(folder: Path, path: object) -> bool:
    """Files of a folder that is removed are named by the descriptor of the folder, and a name."""
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
    os.kill(os.getpid(), signal.SIGKILL)


def failing(number: int) -> Callable[[], None]:
    """The system refuses, with this error."""

    def act() -> None:
        raise OSError(number, os.strerror(number))

    return act


def no_space(folder: Path, number: int) -> Prepare:
    return at_operation(folder, number, failing(errno.ENOSPC), writing=True)


def read_only(folder: Path, number: int) -> Prepare:
    return at_operation(folder, number, failing(errno.EROFS), writing=True)


def short_files(size: int, *, killed: bool) -> Prepare:
    """No file grows beyond `size` bytes: the write that would fails, or kills the process."""

    def prepare() -> None:
        if killed:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return prepare


def few_descriptors(number: int) -> Prepare:
    """So many files may be open beside those that are open now."""

    def prepare() -> None:
        used = {int(name) for name in os.listdir("/proc/self/fd")}
        free = [descriptor for descriptor in range(len(used) + number + 1) if descriptor not in used]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[number], free[number]))

    return prepare


def little_memory(size: int) -> Prepare:
    """So many bytes beside those that are in use now."""

    def prepare() -> None:
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + size, now + size))

    return prepare
