"""spark-submit jobs/pipeline.py --conf-file conf/pipeline.toml: a stream to Service Bus, until SIGTERM."""

import logging
import sys

from spark_sb_sink.pipeline import main

if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("spark_sb_sink").setLevel(logging.INFO)
    sys.exit(main())
