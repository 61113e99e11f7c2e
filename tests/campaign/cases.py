"""Cases of the campaign: each is tried within a deadline, and becomes a line."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field

RIGHT, WRONG, LEFT_OUT = "right", "WRONG", "left out"
MOST_SEEN = 400
"""Characters of what was seen that a line shows."""


class Wrong(Exception):
    """What must not be. Its text says what was seen."""


class CannotTry(Exception):
    """This machine lacks what a case needs. Its text says what."""


class Late(BaseException):
    """A case has not ended by its deadline. Nothing that a case calls takes it for an error of its own."""


@dataclass(frozen=True)
class Case:
    """work: tries it and returns what was seen; raises Wrong or CannotTry. counts: whether the number asked
    for means it."""

    family: str
    name: str
    work: Callable[[], str]
    deadline_s: float = 180.0
    counts: bool = True


@dataclass(frozen=True)
class Line:
    """How a case ended: verdict, what was seen, and the seconds that it took."""

    family: str
    name: str
    verdict: str
    seen: str
    seconds: float
    counts: bool


@dataclass
class Campaign:
    """Tries cases, one after the other. say: takes a line for each."""

    say: Callable[[str], None]
    lines: list[Line] = field(default_factory=list)

    def take(self, cases: Iterable[Case]) -> None:
        """Try all of them. The next one is asked for once the one before has ended."""
        for case in cases:
            line = tried(case)
            self.lines.append(line)
            self.say(
                f"{line.verdict:<8} {line.seconds:6.1f} s  {line.family}: {line.name}:"
                f" {line.seen[:MOST_SEEN]}"
            )

    @property
    def wrong(self) -> list[Line]:
        return [line for line in self.lines if line.verdict == WRONG]

    def table(self) -> str:
        """A row for each family: cases that count, and how all of its lines ended."""
        rows = [f"{'family':<14}{'cases':>6}{RIGHT:>8}{WRONG:>8}{LEFT_OUT:>10}{'seconds':>9}"]
        for family in dict.fromkeys(line.family for line in self.lines):
            lines = [line for line in self.lines if line.family == family]
            ends = Counter(line.verdict for line in lines)
            seconds, counted = sum(line.seconds for line in lines), sum(line.counts for line in lines)
            rows.append(
                f"{family:<14}{counted:>6}{ends[RIGHT]:>8}{ends[WRONG]:>8}{ends[LEFT_OUT]:>10}{seconds:>9.0f}"
            )
        return "\n".join(rows)

    def as_json(self) -> list[dict[str, object]]:
        return [asdict(line) for line in self.lines]


def tried(case: Case) -> Line:
    """Try a case. Whatever it raises that is not one of ours counts as wrong, too."""
    began = time.monotonic()
    try:
        with deadline(case.deadline_s):
            verdict, seen = RIGHT, case.work()
    except CannotTry as error:
        verdict, seen = LEFT_OUT, str(error)
    except Wrong as error:
        verdict, seen = WRONG, str(error)
    except Late:
        verdict, seen = WRONG, f"did not end within {case.deadline_s:g} s"
    except Exception as error:
        verdict, seen = WRONG, f"{type(error).__name__}: {error}"
    return Line(case.family, case.name, verdict, seen, round(time.monotonic() - began, 1), case.counts)


@dataclass
class Patience:
    """By which factor everything may take longer than on a machine that has little else to do."""

    factor: float = 1.0


PATIENCE = Patience()


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises Late inside the block once it has taken so long. Only for the main thread."""

    def late(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds * PATIENCE.factor)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def until(there: Callable[[], bool], seconds: float, what: Callable[[], str] | str) -> float:
    """Wait until something is so. Returns the seconds that took. Raises Wrong, with `what`, if it takes
    longer."""
    began = time.monotonic()
    while not there():
        if time.monotonic() - began > seconds * PATIENCE.factor:
            raise Wrong(f"not within {seconds:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.1)
    return time.monotonic() - began


def check(holds: bool, otherwise: str) -> None:
    """Raises Wrong with a text unless something holds."""
    if not holds:
        raise Wrong(otherwise)


def check_within(most_s: float, seconds: float, what: str) -> None:
    """Raises Wrong if something took too long."""
    check(seconds <= most_s * PATIENCE.factor, f"{what} took {seconds:.1f} s, more than {most_s:g} s")
