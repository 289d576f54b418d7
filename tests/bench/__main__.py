"""`python -m tests.bench NAME [--json]`: benchmarks, each a program of its own."""

import sys

from tests.bench import broker

PROGRAMS = {"broker": broker.main}


def main() -> int:
    names = ", ".join(PROGRAMS)
    if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS:
        print(f"usage: python -m tests.bench NAME [--json] …, NAME is one of: {names}", file=sys.stderr)
        return 2
    return PROGRAMS[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    raise SystemExit(main())
