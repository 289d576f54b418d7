"""Finds the Java that Spark will run on, and says in one sentence what to do when there is none that fits.

Knows nothing of Spark itself: it only asks the `java` program for its version.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from spark_sb_sink.errors import UnsupportedSparkError

MINIMUM = 17


class JavaMissingError(UnsupportedSparkError, RuntimeError):
    """No Java of at least version 17; the text says what was found and what to do."""


def java_program() -> str | None:
    """The `java` that Spark's launcher would take: JAVA_HOME's before the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        candidate = Path(home) / "bin" / "java"
        return str(candidate) if candidate.is_file() else None
    return shutil.which("java")


def major_version(text: str) -> int | None:
    """The major version in what `java -version` prints: `1.8.0_402` is 8, `17.0.15` is 17, `25-ea` is 25."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] else major


def require_java() -> int:
    """The major version of the Java at hand, or `JavaMissingError`."""
    cure = f"Install a JDK or JRE {MINIMUM} or newer and put it on the PATH, or set JAVA_HOME."
    program = java_program()
    if program is None:
        home = os.environ.get("JAVA_HOME")
        found = f"JAVA_HOME is {home!r}, which has no bin/java" if home else "there is no java on the PATH"
        raise JavaMissingError(f"Spark needs Java {MINIMUM} or newer, but {found}. {cure}")
    try:
        done = subprocess.run(  # noqa: S603
            # Without its performance data, for which it would leave a folder in /tmp.
            [program, "-XX:-UsePerfData", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissingError(
            f"Spark needs Java {MINIMUM} or newer, but {program} did not run ({error}). {cure}"
        ) from error
    version = major_version(done.stderr + done.stdout)
    if version is None:
        raise JavaMissingError(f"Spark needs Java {MINIMUM} or newer, but {program} does not tell its version. {cure}")
    if version < MINIMUM:
        raise JavaMissingError(f"Spark needs Java {MINIMUM} or newer, but {program} is Java {version}. {cure}")
    return version
