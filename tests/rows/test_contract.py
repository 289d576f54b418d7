"""A schema fits the row contract, or one error tells everything that is wrong with it."""

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from spark_sb_sink.errors import SchemaError
from spark_sb_sink.rows import Kind, check_schema, fields_of_arrow, fields_of_spark

TEXT, INT, LONG, BINARY, WHEN = StringType(), IntegerType(), LongType(), BinaryType(), TimestampType()
MONTHS = YearMonthIntervalType(1, 1)


def struct(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, of) for name, of in fields])


GOOD = struct(
    ("body", BINARY),
    ("entity", TEXT),
    ("message_id", TEXT),
    ("session_id", TEXT),
    ("partition_key", TEXT),
    ("correlation_id", TEXT),
    ("subject", TEXT),
    ("content_type", TEXT),
    ("reply_to", TEXT),
    ("reply_to_session_id", TEXT),
    ("to", NullType()),
    ("time_to_live", DayTimeIntervalType()),
    ("scheduled_enqueue_time", WHEN),
    (
        "application_properties",
        struct(
            ("string", TEXT),
            ("byte", ByteType()),
            ("short", ShortType()),
            ("int", INT),
            ("long", LONG),
            ("float", FloatType()),
            ("double", DoubleType()),
            ("boolean", BooleanType()),
            ("timestamp", WHEN),
            ("timestamp_ntz", TimestampNTZType()),
            ("binary", BINARY),
            ("void", NullType()),
        ),
    ),
)


def problems(*fields: tuple[str, DataType], entity: str | None = "orders") -> tuple[str, ...]:
    with pytest.raises(SchemaError) as caught:
        check_schema(fields_of_spark(struct(*fields).jsonValue()), entity)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def test_all_columns_fit_and_the_plan_travels():
    plan = check_schema(fields_of_spark(GOOD.jsonValue()))
    assert [name for name, _ in plan.columns] == GOOD.fieldNames()
    assert plan.entity is None
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize("large", [False, True])
def test_spark_and_arrow_schemas_are_read_alike(large):
    def kinds(fields):
        return [(name, of.kind, [(inner, deep.kind) for inner, deep in of.inner]) for name, of in fields]

    more = struct(
        ("map", MapType(TEXT, INT)), ("decimal", DecimalType(9, 2)), ("date", DateType()), ("array", ArrayType(INT))
    )
    schema = StructType(GOOD.fields + more.fields)
    arrow = to_arrow_schema(schema, timezone="UTC", prefers_large_types=large)
    assert kinds(fields_of_arrow(arrow)) == kinds(fields_of_spark(schema.jsonValue()))


@pytest.mark.parametrize(
    "of",
    [DayTimeIntervalType(0, 0), DayTimeIntervalType(1, 3), INT, LONG, FloatType(), DoubleType(), DecimalType(9, 3)],
    ids=lambda of: of.simpleString(),
)
def test_a_time_to_live_is_an_interval_or_seconds(of):
    check_schema(fields_of_spark(struct(("body", TEXT), ("time_to_live", of)).jsonValue()), "orders")


def test_the_entity_of_all_rows_comes_from_the_option_and_a_column_goes_before_it():
    body = [("body", pa.string())]
    assert check_schema(fields_of_arrow(pa.schema(body)), "orders").entity == "orders"
    plan = check_schema(fields_of_arrow(pa.schema([*body, ("entity", pa.string())])), "orders")
    assert plan.entity is None
    assert plan.type_of("entity").kind is Kind.STRING


def test_everything_wrong_is_listed_at_once():
    found = problems(
        ("message_id", LONG),
        ("mesage", TEXT),
        ("sessionid", TEXT),
        ("offset", LONG),
        ("time_to_live", TEXT),
        ("scheduled_enqueue_time", DateType()),
        ("application_properties", struct(("ok", INT), ("price", DecimalType(9, 2)), ("deep", struct(("a", INT))))),
        entity=None,
    )
    assert [problem.split(" ", 1)[0] for problem in found] == [
        "message_id",
        "mesage",
        "sessionid",
        "offset",
        "time_to_live",
        "scheduled_enqueue_time",
        "application_properties.price",
        "application_properties.deep",
        "body",
        "entity",
    ]


@pytest.mark.parametrize(
    ("name", "of", "text"),
    [
        ("entity", INT, "entity is integer, but takes string."),
        ("Subject", TEXT, "Subject is no column of a message; did you mean subject (string)?"),
        ("session", TEXT, "did you mean session_id (string)?"),
        ("offset", LONG, "offset is no column of a message; drop it, or put it into application_properties."),
        ("subject", ArrayType(TEXT), "subject is array, but takes string."),
        ("time_to_live", MONTHS, "time_to_live is interval month, but takes a day-time interval"),
        ("time_to_live", TEXT, "a day-time interval, or a number of seconds"),
        ("scheduled_enqueue_time", LONG, "is long, but takes timestamp or timestamp_ntz (taken as UTC)"),
    ],
)
def test_a_column_that_does_not_fit_is_told_with_what_it_takes(name, of, text):
    (problem,) = problems(("body", TEXT), (name, of))
    assert text in problem


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (TEXT, "is string, but takes map (with string keys) or struct"),
        (MapType(INT, TEXT), "has keys of type integer, but takes string."),
        (MapType(TEXT, DecimalType(5, 1)), "cast it to string (exact) or to double"),
        (MapType(TEXT, ArrayType(INT)), "properties are flat and simple"),
        (MapType(TEXT, MapType(TEXT, INT)), "pull its values up, or use to_json"),
        (struct(("a", struct(("b", INT)))), "pull its fields up, or use to_json"),
        (struct(("a", DateType())), "cast it to timestamp or to string"),
        (struct(("a", DayTimeIntervalType())), "turn it into a number or a string"),
        (struct(("a", VariantType())), "application_properties.a is variant"),
        (struct(("x-ms-path", TEXT)), "the envelope keeps for itself"),
        (struct(("a", INT), ("a", INT)), "application_properties.a is there 2 times"),
    ],
    ids=lambda of: of if isinstance(of, str) else of.simpleString(),
)
def test_properties_that_do_not_fit_are_told_with_what_to_do(of, text):
    (problem,) = problems(("body", TEXT), ("application_properties", of))
    assert text in problem


@pytest.mark.parametrize("of", [INT, NullType(), ArrayType(BINARY)])
def test_a_body_is_binary_or_string(of):
    (problem,) = problems(("body", of))
    assert "but takes binary or string." in problem


def test_a_column_is_there_once():
    (problem,) = problems(("body", TEXT), ("subject", TEXT), ("subject", TEXT))
    assert problem == "subject is there 2 times; a column can be there once."


def test_a_name_that_is_there_already_is_not_proposed():
    (problem,) = problems(("body", TEXT), ("subject", TEXT), ("subjects", TEXT))
    assert "drop it" in problem


def test_no_body_and_no_entity_are_told():
    assert problems(("subject", TEXT), entity=None) == (
        "body is missing; it takes binary or string.",
        "entity is missing; give each row one in a column of type string, or all by the option entity.",
    )


def test_an_option_that_is_no_entity_name_is_told():
    assert "the option entity got 'a//b'" in problems(("body", TEXT), entity="a//b")[0]
