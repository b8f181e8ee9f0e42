"""Operators that do not import torch's compiler.

torch keeps its compiler out of the body of every operator, and imports it for that purpose when one is first called:
seconds, for a process that compiles nothing.
"""

import sys
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import unwrap
from typing import Any

COMPILER = "torch._dynamo"


def lighten(operators: Iterable[Any]) -> None:
    """Let these `torch.library.custom_op`s call their bodies directly, until somebody else imports the compiler."""
    for operator in operators:
        bodies = getattr(operator, "_backend_fns", {})  # torch's own: where another version has none, nothing changes
        for device, body in bodies.items():
            bodies[device] = _without_compiler(body)


def _without_compiler(kept_out: Callable[..., Any]) -> Callable[..., Any]:
    body = unwrap(kept_out)

    @wraps(body)
    def call(*arguments: Any, **options: Any) -> Any:
        return (kept_out if COMPILER in sys.modules else body)(*arguments, **options)

    return call
