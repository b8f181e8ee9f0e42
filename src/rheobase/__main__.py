"""Run the command line: `rheobase`, or `python -m rheobase`."""

from rheobase.extras import ended_by_ctrl_c


def main() -> None:
    """Import the command line and run it. Ctrl-C works from the start."""
    with ended_by_ctrl_c():
        from rheobase import cli
    cli.main()


if __name__ == "__main__":
    main()
