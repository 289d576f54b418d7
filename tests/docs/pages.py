"""The pages that people read, and what stands in them: fenced blocks, links, headings. Runs nothing."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

COMING_PAGES: frozenset[str] = frozenset()
"""Pages that may be linked to before they are there."""
COMING_COMMANDS: frozenset[str] = frozenset()
"""Commands of spark-sb-sink that may be shown before they are there; those that are there are checked."""

_FENCE = re.compile(r"^\s*```(\w*)\s*$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def pages() -> list[str]:
    """All pages, as paths from the root."""
    return ["README.md", "jobs/README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `line` is that of its first line of code."""

    page: str
    line: int
    language: str
    code: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, text: str | None = None) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    language: str | None = None
    start, code = 0, list[str]()
    for number, line in enumerate((text_of(page) if text is None else text).splitlines(), 1):
        fence = _FENCE.match(line)
        if language is None:
            assert fence or not line.lstrip().startswith("```"), f"{page}:{number} opens a block that nobody can read"
            if fence:
                language, start, code = fence[1], number + 1, []
        elif fence:
            assert not fence[1], f"{page}:{number} opens a block inside of the one before it"
            yield Block(page, start, language, "\n".join(code) + "\n")
            language = None
        else:
            code.append(line)
    assert language is None, f"{page}:{start} is never closed"


def all_blocks(*languages: str) -> list[Block]:
    """Those of all pages, of some languages or of any."""
    return [block for page in pages() for block in blocks_of(page) if not languages or block.language in languages]


def prose_of(page: str) -> str:
    """The page without its fenced blocks."""
    kept, inside = [], False
    for line in text_of(page).splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def links_of(page: str) -> list[str]:
    """Targets of links, as they stand there; those to other sites left out."""
    return [target for target in _LINK.findall(prose_of(page)) if not re.match(r"[a-z]+:", target)]


def inline_code(page: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose_of(page))


def anchors_of(page: str) -> set[str]:
    """What the headings of a page can be linked to by, as GitHub names them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*$", prose_of(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number, anchor = 0, slug
        while anchor in found:
            number += 1
            anchor = f"{slug}-{number}"
        found.add(anchor)
    return found
