"""Run the command line: `rheobase`, or `python -m rheobase`. Ctrl-C ends it without a traceback from the start."""

import signal

REPLACED = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # otherwise it is ignored, or not ours
if REPLACED:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    """Import the command line and run it."""
    from rheobase import cli

    if REPLACED:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
