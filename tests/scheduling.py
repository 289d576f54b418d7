"""Which tests share a worker of pytest-xdist.

What needs Spark runs in few workers, one file after the other: each worker has a JVM of its own, and two cores bear no
more of them at a time. Nearly all else waits for the SDK, which sleeps for half a second whenever it opens or closes a
link, and is dealt out test by test. (The group markers of xdist 3.8 have no effect with pytest 9.)
"""

from xdist.scheduler import LoadScopeScheduling

TOGETHER = {
    "programs": ("test_bench.py", "demo/", "docs/", "syphon/test_applications.py", "commands/test_program.py"),
    "sink-applications": ("sink/test_memory.py", "sink/test_kills.py", "sink/test_secrets.py", "sink/test_pipeline.py"),
    "sink": (
        "sink/test_arrival.py",
        "sink/test_datasource.py",
        "sink/test_outages.py",
        "sink/test_replays.py",
        "sink/test_sink.py",
        "test_ground.py",
    ),
    "syphon-and-commands": ("syphon/test_query.py", "syphon/test_job.py", "syphon/test_workers.py", "commands/"),
}


class Together(LoadScopeScheduling):
    """Scopes are those above, and single tests; the largest scopes begin first."""

    def _split_scope(self, nodeid: str) -> str:
        where = nodeid.removeprefix("tests/")
        return next((name for name, places in TOGETHER.items() if where.startswith(places)), nodeid)
