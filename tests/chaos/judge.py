"""What was promised of a disturbed run, and what of that was not kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from place import Ending

_SAME = ("loss", "epochs", "val_accuracy", "test_accuracy", "best_epoch")
_REFUSED = ("has no checkpoint", "there is no run in")


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a run that was disturbed so must do.

    Attributes:
        what: What was done to it.
        ends: True if it must end with an error; False if it must go on to the results of a run that nobody disturbed;
            None if either is right: what was disturbed may not have been needed any more.
        said: What its error, or its last words before it goes on, must say: a regular expression; empty for anything.
        codes: Exit statuses of an error.
        mute: Whether nobody was left who could say anything.
        torn: Whether it may leave files that are not written to their end, and do not look as if they were.
    """

    what: str
    ends: bool | None
    said: str = ""
    codes: tuple[int, ...] = (1, 2)
    mute: bool = False
    torn: bool = False


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a run.

    Attributes:
        outcome: "went on", "resumed", "no checkpoint", or "over" if it was never disturbed.
        violations: What was not as promised.
    """

    outcome: str
    violations: tuple[str, ...]


def verdict(promise: Promise | None, first: Ending, resumed: Ending | None, reference: dict[str, Any]) -> Verdict:
    """Judge a run.

    Args:
        promise: What was promised; None if it was over before it could be disturbed.
        first: How it ended.
        resumed: How it ended when it was resumed; None if it was not.
        reference: Summary and metrics of a run that nobody disturbed.
    """
    went_on = promise is None or promise.ends is False or (promise.ends is None and first.code == 0)
    found = [f"run: {text}" for text in remains(first, torn=promise is not None and promise.torn and not went_on)]
    if promise is None or went_on:
        found += [f"run: {text}" for text in unlike(first, reference)]
        if promise is not None and promise.ends is False and not re.search(promise.said, first.errors):
            found.append(f"run: does not say {promise.said!r}")
        return Verdict(outcome="over" if promise is None else "went on", violations=tuple(found))
    found += [f"run: {text}" for text in _unclear(promise, first)]
    outcome = "resumed" if first.checkpoints else "no checkpoint"
    if resumed is None:
        found.append("was not resumed")
    else:
        found += [f"resumed: {text}" for text in remains(resumed, torn=not first.checkpoints)]
        if first.checkpoints or "starts from the beginning" in resumed.errors:
            found += [f"resumed: {text}" for text in unlike(resumed, reference)]
        elif resumed.code != 2 or not any(words in resumed.errors for words in _REFUSED):
            found.append(f"resumed: exit code {resumed.code}, and does not say that there is no checkpoint")
    return Verdict(outcome=outcome, violations=tuple(found))


def _unclear(promise: Promise, ending: Ending) -> list[str]:
    """What an error lacks that should say what happened."""
    found = []
    if ending.code not in promise.codes:
        found.append(f"exit code {ending.code}, not {' or '.join(map(str, promise.codes))}")
    if promise.mute:
        return found
    errors = re.findall(r"^(?:\[\S+\] ?)?error: .*\n\s+needed: .*\n\s+got: .*\n\s+repair: .*", ending.errors, re.M)
    if not errors:
        found.append("no error with what was needed, what came and what to do")
    if not re.search(promise.said, "\n".join(errors)):
        found.append(f"does not say {promise.said!r}")
    return found


def remains(ending: Ending, *, torn: bool) -> list[str]:
    """What must not be, however a command ends; ``torn`` files may be."""
    found = [f"hangs: {ending.seconds:.0f} s"] if ending.code is None else []
    found += [f"left behind: {what}" for what in ending.left]
    found += [f"cannot be read: {name}" for name in ending.broken]
    return found + ([] if torn else [f"not written to its end: {name}" for name in ending.partial])


def unlike(ending: Ending, reference: dict[str, Any]) -> list[str]:
    """How a run that should have reached its end differs from one that nobody disturbed."""
    if ending.code != 0:
        return [f"exit code {ending.code}, not 0"]
    found = [f"another {name}" for name in _SAME if ending.summary.get(name) != reference[name]]
    return found + ([] if list(ending.metrics) == list(reference["metrics"]) else ["other lines in metrics.jsonl"])
