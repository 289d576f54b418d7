"""Every link between pages leads somewhere, and every page can be found from the README."""

import posixpath
import re

import pytest

from tests.docs.pages import COMING_PAGES, ROOT, anchors_of, inline_code, links_of, pages, text_of


def target_of(page: str, link: str) -> tuple[str, str]:
    """Page and anchor that a link on a page means."""
    path, _, anchor = link.partition("#")
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page, anchor


@pytest.mark.parametrize("page", pages())
def test_every_link_leads_somewhere(page: str) -> None:
    for link in links_of(page):
        target, anchor = target_of(page, link)
        if target in COMING_PAGES and not (ROOT / target).exists():
            continue
        assert (ROOT / target).exists(), f"{page} links to {link}"
        if anchor:
            assert anchor in anchors_of(target), f"{page} links to {link}; {target} has {sorted(anchors_of(target))}"


def test_every_page_can_be_found_from_the_readme() -> None:
    seen, waiting = set[str](), ["README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or not page.endswith(".md") or not (ROOT / page).exists():
            continue
        seen.add(page)
        waiting += [target_of(page, link)[0] for link in links_of(page)]
    assert set(pages()) <= seen


def test_pages_that_the_code_sends_people_to_are_there() -> None:
    named = {
        name
        for path in (*(ROOT / "spark_sb_sink").rglob("*.py"), *(ROOT / "conf").glob("*.toml"))
        for name in re.findall(r"docs/[\w-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert "docs/deploying.md" in named
    assert {name for name in named - COMING_PAGES if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("page", pages())
def test_files_that_a_page_names_are_there(page: str) -> None:
    for code in inline_code(page):
        match = re.fullmatch(r"((?:conf|jobs|tests|docs|spark_sb_sink)/[\w./-]+)(::\w+(?:::\w+)?)?", code)
        if match and match[1] not in COMING_PAGES:
            assert (ROOT / match[1]).exists(), f"{page} names {match[1]}"
            for name in (match[2] or "").split("::"):
                assert not name or re.search(rf"\b(?:def|class) {name}\b", text_of(match[1])), f"{page} names {code}"
