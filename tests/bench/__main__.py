"""`python -m tests.bench NAME [--json]`: benchmarks, each a program of its own; `page` tells what they found."""

import importlib
import sys

PROGRAMS = ("broker", "sink", "syphon", "batch", "failover", "scale", "page")


def main() -> int:
    names = ", ".join(PROGRAMS)
    if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS:
        print(f"usage: python -m tests.bench NAME [--json] …, NAME is one of: {names}", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"tests.bench.{sys.argv[1]}").main(sys.argv[2:]))


if __name__ == "__main__":
    raise SystemExit(main())
