"""The command ``outgrow``."""


def main() -> None:
    """Run the command line."""
    from outgrow.app.cli.main import run_cli

    run_cli()


if __name__ == "__main__":
    main()
