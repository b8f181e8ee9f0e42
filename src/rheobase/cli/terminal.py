"""The terminal. Names, paths and messages may come from untrusted files, so control characters in them are escaped."""

import errno
import os
import unicodedata
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.text import Text

HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # Unicode categories: control, format, surrogate, line and paragraph separator

if os.environ.get("COLUMNS") == "0":  # some programs leave it to say nothing, but rich would print lines of no width
    del os.environ["COLUMNS"]


def one_line(text: str) -> str:
    """Return the text with control characters and line breaks escaped."""
    return "".join(_written_out(c) if unicodedata.category(c) in HIDDEN else c for c in text)


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode()


class Terminal(Console):
    """A console without markup, emoji or control characters except line breaks. It survives a closed pipe or window."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(highlight=False, soft_wrap=True, markup=False, emoji=False, stderr=stderr)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str("\n".join(map(one_line, text.split("\n"))), **options)

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.on_broken_pipe()  # the terminal window was closed

    def on_broken_pipe(self) -> None:
        """Discard all further output: the reader is gone, but training goes on."""
        self.quiet = True
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)
