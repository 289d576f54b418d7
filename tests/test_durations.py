"""Durations are read as people write them, and written so that they are read back the same."""

import contextlib
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink.durations import format_duration, parse_duration, spoken_duration
from spark_sb_sink.errors import OptionError


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1m", 60.0),
        ("15m", 900.0),
        ("0s", 0.0),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("3ms", 0.003),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("1h30m", 5400.0),
        ("1m 30s", 90.0),
        (" 10S ", 10.0),
        ("1", 1.0),
        ("60", 60.0),
        ("0", 0.0),
        ("0.5", 0.5),
        (60, 60.0),
        (0.25, 0.25),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_a_duration_is_read_as_seconds(written: object, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "m",
        "one minute",
        "1 fortnight",
        "-1s",
        "-1",
        "1e3",
        "nan",
        "inf",
        "1m1h",
        "1s1s",
        ".5s",
        "5.s",
        "١s",
        None,
        True,
        [],
        -1,
        float("nan"),
        float("inf"),
        10**400,
        timedelta(seconds=-1),
    ],
)
def test_what_is_no_duration_is_refused_in_one_sentence_that_says_what_it_takes(written: object) -> None:
    with pytest.raises(OptionError) as caught:
        parse_duration(written)
    text = str(caught.value)
    assert repr(written) in text
    assert '"1m"' in text
    assert "number of seconds" in text
    assert "\n" not in text
    assert text.endswith(".")


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (0.0001, "0.0001s"),
        (1.5, "1.5s"),
        (60, "1m"),
        (90, "90s"),
        (900, "15m"),
        (3600, "1h"),
        (172800, "2d"),
    ],
)
def test_a_duration_is_written_in_the_largest_unit_that_fits(seconds: float, written: str) -> None:
    assert format_duration(seconds) == written


@given(st.floats(min_value=0, max_value=1e9, allow_nan=False) | st.integers(0, 10**9))
def test_what_is_written_is_read_back_the_same(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.text())
def test_any_text_is_either_a_duration_or_refused(text: str) -> None:
    with contextlib.suppress(OptionError):
        assert parse_duration(text) >= 0


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_what_cannot_be_read_back_is_not_written(seconds: float) -> None:
    with pytest.raises(OptionError, match="is no duration"):
        format_duration(seconds)


@pytest.mark.parametrize(
    ("seconds", "spoken"),
    [(0, "0s"), (0.4, "0s"), (59.6, "1m"), (310, "5m 10s"), (3600, "1h"), (12_345, "3h 25m"), (187_200, "2d 4h")],
)
def test_people_read_the_two_largest_units(seconds: float, spoken: str) -> None:
    assert spoken_duration(seconds) == spoken
