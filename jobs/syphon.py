"""spark-submit jobs/syphon.py --conf-file conf/connection-strings.toml: the backlog to the primaries, until SIGTERM."""

import sys

from spark_sb_sink.syphon.job import main

if __name__ == "__main__":
    sys.exit(main())
