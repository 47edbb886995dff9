"""How often a mutant has made a difference."""

from dataclasses import dataclass


@dataclass
class Hits:
    """How often a mutant has changed something."""

    count: int = 0

    def note(self, changed: bool) -> None:
        """Count one place that it came by."""
        self.count += changed
