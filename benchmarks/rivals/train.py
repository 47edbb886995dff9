"""The command `outgrow`, with the strategies of `micro_batches.py` and `p3.py` beside its own."""

from __future__ import annotations

from outgrow.runtime.system.environment import set_thread_environment


def main() -> None:
    """Run the command line."""
    set_thread_environment()
    from micro_batches import LocalShuffles, ModelCentric
    from p3 import P3

    from outgrow.app.cli.main import run_cli
    from outgrow.app.strategy_registry import STRATEGIES

    STRATEGIES.update({kind.name: kind for kind in (ModelCentric, LocalShuffles, P3)})
    run_cli()


if __name__ == "__main__":
    main()
