"""JVMs for tests: they live for seconds, so starting is most of what they cost.

They take a simple compiler and a simple collector, compile no plans, and take Spark's classes from an archive (class
data sharing of the JDK) that the first run with several workers makes beside its tests. `python -m tests.jvm FILE`
makes one.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from spark_sb_sink.java import JavaMissingError, java_program, require_java

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
"""For a driver: Spark runs plans as they are, as compiling each costs more than its few rows. A fifth of the whole."""
QUIET = "-Xlog:cds*=off"
"""What does not fit the archive is read from the jars, without a word on standard output."""
OPTIONS = "SPARK_SUBMIT_OPTS"
"""Where Spark's launcher looks for options of the driver's JVM; so also programs that a test starts have them."""


def options(archive: Path | None) -> str:
    simple = f"{SHORT_LIVED} {INTERPRETED}"
    return simple if archive is None else f"{simple} {QUIET} -XX:SharedArchiveFile={archive}"


def of_executors() -> str:
    """The same for an executor, which takes Spark's settings from its driver only."""
    given = os.environ.get(OPTIONS, SHORT_LIVED).split()
    return " ".join(option for option in given if not option.startswith("-Dspark."))


def archive_in(folder: Path) -> Path | None:
    """Where the archive for this Java and this Spark has its place; None without a Java."""
    program = java_program()
    try:
        require_java()
    except JavaMissingError:
        return None
    assert program is not None
    java = Path(program).resolve()
    which = f"{java} {java.stat().st_mtime_ns} {pyspark.__version__} {pyspark.__file__}"
    return folder / f"spark-{hashlib.sha256(which.encode()).hexdigest()[:16]}.jsa"


def begin(archive: Path) -> "subprocess.Popen[bytes]":
    """Make it in a process of its own. It is there whole or not at all."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.jvm", str(archive)],
        cwd=Path(__file__).resolve().parents[1],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main(archive: Path) -> None:
    unfinished = archive.with_suffix(f".{os.getpid()}")
    os.environ[OPTIONS] = f"{SHORT_LIVED} {INTERPRETED} {QUIET} -XX:ArchiveClassesAtExit={unfinished}"
    from pyspark import SparkContext

    from spark_sb_sink.sessions import local_session

    with tempfile.TemporaryDirectory() as folder:
        spark = local_session("archive", delta=True, cores=2, **{"spark.sql.warehouse.dir": f"{folder}/warehouse"})
        _use(folder)
        gateway = SparkContext._gateway
        spark.stop()
    assert gateway is not None
    jvm = gateway.proc
    jvm.stdin.close()  # at which Spark's JVM ends, and writes the archive
    jvm.wait(120)
    unfinished.replace(archive)


def _use(folder: str) -> None:
    """What tests do with Spark, once."""
    from pyspark.sql import SparkSession

    spark = SparkSession.active()
    table = f"{folder}/table"
    spark.range(10).mapInArrow(lambda batches: batches, "id long").write.format("delta").save(table)
    stream = spark.readStream.format("delta").load(table).writeStream.trigger(availableNow=True)
    stream = stream.option("checkpointLocation", f"{folder}/checkpoint")
    stream.foreachBatch(lambda df, _: df.repartition(2).groupBy("id").count().persist().collect()).start()
    for query in spark.streams.active:
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
