"""Each text on the page is one that the code tells, and each error that it raises has an entry there."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import spark_sb_sink
from spark_sb_sink import errors, faults
from spark_sb_sink.errors import SparkSbSinkError
from spark_sb_sink.java import JavaMissingError
from spark_sb_sink.syphon import restore
from tests.docs.pages import blocks_of, text_of

PAGE = "docs/troubleshooting.md"
PACKAGE = Path(spark_sb_sink.__file__).parent
ANY = "…"
GAP = "\0"
"""Where a text of the code has something that is not known before it is told."""
D = "a detail"
SAMPLES: list[SparkSbSinkError] = [
    errors.SecondaryUnreachableError(namespace="n", detail=D),
    errors.CredentialsRefusedError(namespace="n", detail=D),
    errors.ManageClaimMissingError(namespace="n", detail=D),
    errors.QueueNotCreatableError(namespace="n", queue="q", detail=D),
    errors.QueueUnsafeError(namespace="n", queue="q", detail=D),
    errors.MisconfiguredSendError(namespace="n", entity="e", claim="Send", detail=D),
    errors.AllBacklogsOutError(namespace="n", entity="e", errors=[("q", "no")]),
    errors.UnsendableError(entity="e", overflow=1, quarantine=1, reasons=["why"]),
    errors.OverflowLeftError(state="s", table="t", entities={"e": (1, "why")}),
    errors.ConservationError(rows=1, accounted=2, detail=D),
    errors.BatchFailedError([]),
    errors.StateError(state="s", detail=D),
    errors.BoardError(path="p", detail=D),
    errors.BoardError(path="p", detail=D, patience=1),
    errors.ClosedError("It"),
    errors.TurnFailedError(detail=D),
    errors.FaultedError(first="primary", other="secondary", reason=D),
    errors.IncompatibleSdkError(found="1", works="2", missing="m"),
    errors.SchemaError("a problem"),
    errors.ReplayRefusedError(state="s", seconds=60),
    JavaMissingError(
        "Spark needs Java 17 or newer, but there is none. Install a JDK or JRE 17 or newer and put it on the "
        "PATH, or set JAVA_HOME."
    ),
]
BY_CALLERS = {errors.OptionError, errors.UnsupportedSparkError}
"""Their texts stand where they are raised."""


def classes() -> list[type[SparkSbSinkError]]:
    return [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, SparkSbSinkError)]


def leaves() -> set[type[SparkSbSinkError]]:
    return {found for found in classes() if found not in {base for each in classes() for base in each.__bases__}}


def told_where_they_are_raised(kind: type[SparkSbSinkError]) -> list[str]:
    """The texts that callers give to an error, with gaps."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(called, ast.Call) and getattr(called.func, "id", None) == kind.__name__:
                found.append(text_in(called.args[0]))
    return found


def text_in(node: ast.expr) -> str:
    assert isinstance(node, ast.JoinedStr | ast.Constant), "write the text where the error is raised, to be found here"
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in parts)


def quoted() -> list[tuple[str, str]]:
    """The texts of the page, each with the heading that it stands below."""
    found, heading = list[tuple[str, str]](), ""
    lines = text_of(PAGE).splitlines()
    at = {block.line: block for block in blocks_of(PAGE)}
    for number, line in enumerate(lines, 1):
        if re.match(r"#+ ", line):
            heading = line.lstrip("# ")
        if number in at and at[number].language == "text":
            found.append((heading, " ".join(at[number].code.split())))
    return found


def told_by_the_code() -> list[str]:
    """Every text in the library, with gaps for what is filled in."""
    texts: list[str] = []
    for path in PACKAGE.rglob("*.py"):
        if PACKAGE / "broker" in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else GAP for part in node.values)
                texts.append(" ".join("".join(map(str, parts)).split(" ")))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(re.sub(r"%[\d.]*[sdfg]", GAP, node.value))
    return texts


def pattern_of(quote: str) -> str:
    return ".*".join(re.escape(part) for part in quote.split(ANY))


def is_told(quote: str, texts: list[str]) -> bool:
    """Whether one text of the code has all fixed parts of the quote, in order."""
    pattern = ".*".join(re.escape(part.strip()) for part in quote.split(ANY))
    return any(re.search(pattern, text, re.DOTALL) for text in texts)


TEXTS = told_by_the_code()


@pytest.mark.parametrize(("heading", "quote"), quoted(), ids=lambda text: text[:60])
def test_a_text_of_the_page_is_one_that_the_code_tells(heading: str, quote: str) -> None:
    assert len(quote.replace(ANY, "").strip()) >= 7, "too little to be found by"
    rendered = [str(error) for error in SAMPLES if type(error).__name__ == heading]
    if rendered:
        assert any(re.fullmatch(pattern_of(quote), text, re.DOTALL) for text in rendered), quote
    else:
        assert is_told(quote, TEXTS), quote


def test_every_error_has_an_entry() -> None:
    headings = {heading for heading, _ in quoted()}
    assert {found.__name__ for found in leaves()} <= headings
    assert {found.__name__ for found in classes()} <= set(re.findall(r"\w+", text_of(PAGE)))
    assert {type(error) for error in SAMPLES} | BY_CALLERS >= leaves()


def test_every_text_of_an_error_is_on_the_page() -> None:
    for error in SAMPLES:
        quotes = [quote for heading, quote in quoted() if heading == type(error).__name__]
        assert any(re.fullmatch(pattern_of(quote), str(error), re.DOTALL) for quote in quotes), str(error)


def test_every_reason_why_spark_cannot_be_used_is_on_the_page() -> None:
    quotes = [quote for heading, quote in quoted() if heading == errors.UnsupportedSparkError.__name__]
    texts = told_where_they_are_raised(errors.UnsupportedSparkError)
    assert len(texts) >= 5
    assert [text for text in texts if not any(is_told(quote, [text]) for quote in quotes)] == []


def test_the_error_about_java_is_one_of_ours_too() -> None:
    assert issubclass(JavaMissingError, SparkSbSinkError)
    assert "JavaMissingError" in {heading for heading, _ in quoted()}


def test_every_entry_tells_cause_and_cure() -> None:
    """Between a text and the next one or the next heading."""
    for entry in re.split(r"^```text$", text_of(PAGE), flags=re.MULTILINE)[1:]:
        told = re.split(r"^#", entry.partition("```")[2], flags=re.MULTILINE)[0]
        assert "**Cure.**" in told, entry


def test_reasons_in_tables_and_dead_letter_queues_are_those_of_the_code() -> None:
    page = text_of(PAGE)
    for reason in (restore.NO_ENVELOPE, restore.MALFORMED, restore.EXPIRED, restore.REFUSED):
        assert f"Reason `{reason}`" in page
    bad = {row.reason for row in faults._TABLE if row.kind is faults.Kind.BAD_MESSAGE}
    assert {f"| `{reason}` |" for reason in bad} == {
        f"| `{found}` |" for found in re.findall(r"^\| `([a-z ]+)` \|", page, re.M)
    }


def test_a_text_that_nobody_tells_is_found() -> None:
    assert is_told("The options file … could not be read: …", TEXTS)
    assert not is_told("The options file … could not be eaten: …", TEXTS)
