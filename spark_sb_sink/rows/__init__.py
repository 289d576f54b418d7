"""Rows to messages: which columns a row may have, which message it becomes, and which id. Without Spark and Azure."""

from spark_sb_sink.rows.contract import RowPlan, check_schema
from spark_sb_sink.rows.encoded import BadRow, EncodedBatch, EntityMessages
from spark_sb_sink.rows.encoding import encode_batch
from spark_sb_sink.rows.ids import IdMaker
from spark_sb_sink.rows.kinds import FieldType, Kind, fields_of_arrow, fields_of_spark

__all__ = [
    "BadRow",
    "EncodedBatch",
    "EntityMessages",
    "FieldType",
    "IdMaker",
    "Kind",
    "RowPlan",
    "check_schema",
    "encode_batch",
    "fields_of_arrow",
    "fields_of_spark",
]
