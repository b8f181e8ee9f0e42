"""Operators that do not import torch's compiler.

torch keeps its compiler out of the body of every operator. To do so, it imports the compiler when an operator is first
called, which takes seconds even if the process compiles nothing.
"""

import sys
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import unwrap
from typing import Any

COMPILER = "torch._dynamo"


def lighten(operators: Iterable[Any]) -> None:
    """Let these `torch.library.custom_op`s call their bodies directly, as long as nothing else imports the compiler."""
    for operator in operators:
        bodies = getattr(operator, "_backend_fns", {})  # internal to torch: if a version lacks it, nothing changes
        for device, body in bodies.items():
            bodies[device] = _without_compiler(body)


def _without_compiler(kept_out: Callable[..., Any]) -> Callable[..., Any]:
    body = unwrap(kept_out)

    @wraps(body)
    def call(*arguments: Any, **options: Any) -> Any:
        return (kept_out if COMPILER in sys.modules else body)(*arguments, **options)

    return call
