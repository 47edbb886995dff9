"""The command ``outgrow``."""

from outgrow.runtime.threads import set_threads


def main() -> None:
    """Run the command line."""
    set_threads()
    from outgrow.app.cli.main import run

    run()


if __name__ == "__main__":
    main()
