"""The doctor on this machine: Java, the packages and their versions, the jars of Delta. Starts no Spark."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from spark_sb_sink.errors import IncompatibleSdkError
from spark_sb_sink.findings import Finding, fail, ok, warn
from spark_sb_sink.java import JavaMissingError, require_java
from spark_sb_sink.wire import check_sdk

SPARK = "4.2"
"""The Spark that the tests run on."""
DELTA = "4.4.0"
"""The Delta that fits it, and whose jars are on Maven Central."""
FORMAT_SINCE = (4, 1)
"""The Spark that the data source of `format("servicebus")` takes."""
UNTOLD = "of a version that is not known"
_INSTALL = "from a clone of the project: pip install '.[spark]'"
_PACKAGES = ("azure-servicebus", "pyspark", "delta-spark", "pandas", "pyarrow")


def examine(*, delta_needed: bool) -> Iterator[Finding]:
    """All checks of this machine."""
    found = installed()
    yield java()
    yield sdk(found)
    yield from packages(found, delta_needed=delta_needed)
    yield jars(found, jar_folders(), delta_needed=delta_needed)


def installed() -> dict[str, str]:
    """The versions at hand, by package."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if "pyspark" not in found and find_spec("pyspark") is not None:  # that of a Spark which was not installed by pip
        import pyspark

        found["pyspark"] = pyspark.__version__
    if "delta-spark" not in found and find_spec("delta") is not None:  # a platform's own, which tells no version
        found["delta-spark"] = UNTOLD
    return found


def java() -> Finding:
    try:
        return ok("Java", f"Java {require_java()}")
    except JavaMissingError as error:
        found, _, cure = str(error).partition(". ")
        return fail("Java", f"{found}.", cure)


def sdk(found: Mapping[str, str]) -> Finding:
    """Whether the private parts of the SDK are those that we know."""
    try:
        check_sdk()
    except IncompatibleSdkError as error:
        return fail("azure-servicebus", str(error), "pip install 'azure-servicebus>=7.15.0,<7.16'")
    return ok("azure-servicebus", f"{found.get('azure-servicebus', 'its version is not told')}, as it is relied on")


def packages(found: Mapping[str, str], *, delta_needed: bool) -> Iterator[Finding]:
    """Whether Spark and what it stands on fit together."""
    spark = found.get("pyspark")
    if spark is None:
        yield fail("Spark", "pyspark is not installed", _INSTALL)
    elif _number(spark) < FORMAT_SINCE:
        told = f'pyspark {spark}, with which nobody has tried it, and which cannot have format("servicebus")'
        yield warn("Spark", told, f"foreachBatch may work; the tests run on Spark {SPARK}")
    elif not spark.startswith(f"{SPARK}."):
        yield warn("Spark", f"pyspark {spark}, with which nobody has tried it", f"the tests run on Spark {SPARK}")
    else:
        yield ok("Spark", f"pyspark {spark}")
    yield _delta(found.get("delta-spark"), spark, delta_needed=delta_needed)
    for name, least, below in (("pandas", (2, 2), (3,)), ("pyarrow", (18,), None)):
        got = found.get(name)
        if got is None:
            yield fail(name, f"{name} is not installed", _INSTALL)
        elif _number(got) < least or (below is not None and _number(got) >= below):
            # To a platform with another Spark belong other versions.
            if spark is not None and not spark.startswith(f"{SPARK}."):
                yield warn(name, f"{name} {got}, with which nobody has tried it", f"the tests run on Spark {SPARK}")
            else:
                yield fail(name, f"{name} {got} does not go with Spark {SPARK}", _INSTALL)
        else:
            yield ok(name, f"{name} {got}")


def _delta(delta: str | None, spark: str | None, *, delta_needed: bool) -> Finding:
    if delta is None:
        if not delta_needed:
            return ok("Delta", "not installed, and not needed without the option state")
        return fail("Delta", "delta-spark is not installed, and the option state needs it", _INSTALL)
    if delta == UNTOLD:
        return warn("Delta", f"delta {UNTOLD}", f"the tests run on {DELTA}; the check `state` tries what is there")
    if delta == "4.4.1":
        cure = f"pip install 'delta-spark=={DELTA}', or bring its jars yourself"
        return warn("Delta", "delta-spark 4.4.1, whose jars are not on Maven Central", cure)
    if delta != DELTA and spark is not None and spark.startswith(f"{SPARK}."):
        return warn(
            "Delta", f"delta-spark {delta}, not tried with Spark {spark}", f"pip install 'delta-spark=={DELTA}'"
        )
    return ok("Delta", f"delta-spark {delta}")


def jars(found: Mapping[str, str], folders: Iterable[Path], *, delta_needed: bool) -> Finding:
    """Whether the jar of Delta that a local session would ask for is on this machine."""
    delta, spark = found.get("delta-spark"), found.get("pyspark")
    if not delta_needed:
        return ok("Delta's jars", "not needed without the option state")
    if delta is None or spark is None:
        return fail("Delta's jars", "not looked for without pyspark and delta-spark", _INSTALL)
    if delta == UNTOLD:
        return warn("Delta's jars", f"not looked for: delta is {UNTOLD}", "who brought Delta brought its jars too")
    short = ".".join(spark.split(".")[:2])
    pattern = re.compile(rf"(?:.*_)?delta-spark_(?:{re.escape(short)}_)?2\.13-{re.escape(delta)}\.jar")
    for folder in folders:
        for jar in sorted(folder.rglob("*delta-spark*.jar")) if folder.is_dir() else ():
            if pattern.fullmatch(jar.name):
                return ok("Delta's jars", f"{jar.name} in {jar.parent}")
    return warn(
        "Delta's jars",
        f"io.delta:delta-spark_{short}_2.13:{delta} is not on this machine",
        "Spark fetches it from Maven Central at the first start; without that network, copy it into Spark's jars",
    )


def jar_folders() -> list[Path]:
    """Where Spark finds jars, or keeps those that it has fetched."""
    home = Path.home()
    folders = [home / ".ivy2.5.2" / "jars", home / ".ivy2" / "jars", home / ".m2" / "repository" / "io" / "delta"]
    if os.environ.get("SPARK_HOME"):
        folders.insert(0, Path(os.environ["SPARK_HOME"]) / "jars")
    spec = find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        folders.insert(0, Path(spec.origin).parent / "jars")
    return folders


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
