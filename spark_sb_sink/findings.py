"""What the doctor says: a check, a verdict, what was found, and what to do about it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """ok: nothing to do. warn: it works, but. fail: it will not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `cure` is what to do about it; empty where there is nothing to do."""

    check: str
    verdict: Verdict
    found: str
    cure: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Verdict.OK, found)


def warn(check: str, found: str, cure: str) -> Finding:
    return Finding(check, Verdict.WARN, found, cure)


def fail(check: str, found: str, cure: str) -> Finding:
    return Finding(check, Verdict.FAIL, found, cure)


def failed(findings: Iterable[Finding]) -> bool:
    """Whether anything will not work."""
    return any(finding.verdict is Verdict.FAIL for finding in findings)
