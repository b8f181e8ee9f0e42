"""The command line as a new process would run it, for tutorials too."""

from tests.story.conftest import fresh, rheobase

__all__ = ["fresh", "rheobase"]
