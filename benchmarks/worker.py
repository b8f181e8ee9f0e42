"""The process of one contender: python -m benchmarks.worker PIPE NAME SETTING

`rheobase` is the package on the path, from this checkout or an older one. Modules that have moved since are registered
under their present names, so that everything else is the same for both.
"""

import json
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection

MOVED = {"rheobase.train.capture": "rheobase.capture", "rheobase.train.heap": "rheobase.heap"}


def main(pipe: str, name: str, setting: str) -> None:
    for new, old in MOVED.items():
        if find_spec(old):
            sys.modules[new] = import_module(old)
    from benchmarks.contenders import Setting
    from benchmarks.measure import serve

    with suppress(EOFError):  # the parent has ended
        serve(Connection(int(pipe)), name, Setting(**json.loads(setting)))


if __name__ == "__main__":
    main(*sys.argv[1:])
