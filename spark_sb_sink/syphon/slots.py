"""How many tasks an application can run at the same time, and whether that is enough for a syphon in it."""

from pyspark.sql import SparkSession

from spark_sb_sink.errors import OptionError, UnsupportedSparkError
from spark_sb_sink.options import Options


def slots_of(spark: SparkSession) -> int | None:
    """Task slots of the application; None where it asks for more as it needs them (dynamic allocation)."""
    conf = spark.sparkContext.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return None
    context = spark.sparkContext._jsc.sc()
    now = int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
    # Executors that were asked for may not have come yet.
    per_task = int(conf.get("spark.task.cpus", "1") or 1)
    asked_for = int(conf.get("spark.executor.instances", "0") or 0)
    cores = int(conf.get("spark.executor.cores", "1") or 1)
    return max(now, asked_for * (cores // per_task))


def check_slots(spark: SparkSession, options: Options, taken: int) -> None:
    """A task that waits for a slot serves no queue, and one that never ends would take it from others."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedSparkError(
            "The syphon got a session of Spark Connect, but takes one of classic Spark: its tasks need to know where "
            "an executor keeps its files. Run it in the driver itself (spark-submit jobs/syphon.py, say)."
        )
    slots = slots_of(spark)
    parts = [(options.syphon_tasks, "for syphon_tasks")]
    parts += [(1, "for the overflow")] if options.state is not None else []
    parts += [(taken, "for the sink")] if taken else []
    needed = sum(count for count, _ in parts)
    if slots is not None and slots < needed:
        told = ", ".join(f"{count} {what}" for count, what in parts)
        raise OptionError(
            f"the syphon needs {needed} task slots ({told}), and this application has {slots}; give it more cores, or "
            "run the syphon as an application of its own (spark-submit jobs/syphon.py)."
        )
