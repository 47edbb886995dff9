"""The command ``outgrow``."""


def main() -> None:
    """Run the command line."""
    from outgrow.app.cli.main import run

    run()


if __name__ == "__main__":
    main()
