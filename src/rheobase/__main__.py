from rheobase.extras import ended_by_ctrl_c


def main() -> None:
    with ended_by_ctrl_c():
        from rheobase import cli
    cli.main()


if __name__ == "__main__":
    main()
