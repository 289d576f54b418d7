"""The codec and the envelope stand alone."""

import subprocess
import sys


def test_codec_and_envelope_import_neither_spark_nor_azure_nor_proton():
    program = (
        "import sys, spark_sb_sink.amqp, spark_sb_sink.envelope; "
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'pyspark', 'azure', 'proton', 'pyarrow'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
