"""The terminal. Names, paths and messages come from files, so they are shown as they are: nothing in them acts."""

import errno
import os
import unicodedata
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.text import Text

HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # kinds of characters: of control and format, halves of pairs, ends of lines


def one_line(text: str) -> str:
    """The text with characters that a terminal would act on written out, ends of lines too."""
    return "".join(_written_out(c) if unicodedata.category(c) in HIDDEN else c for c in text)


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode()


class Terminal(Console):
    """No markup, no emoji, and no control characters but the ends of lines. A closed pipe or window ends nothing."""

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
            self.on_broken_pipe()  # so does a terminal whose window was closed end

    def on_broken_pipe(self) -> None:
        """Whoever read has gone away: a training goes on without."""
        self.quiet = True
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)
