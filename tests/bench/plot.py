"""The rows of a run as bars, an SVG for each figure. Which program it was is told by the keys of its rows."""

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

from tests.bench.harness import Row

COLOURS = {
    "ours": "#2563a8",
    "sdk batches": "#c8702a",
    "sdk batches, links kept": "#5a8f4e",
    "sdk single": "#d9a441",
    "send left out": "#9aa3ad",
}
OTHERS = ("#2563a8", "#c8702a", "#5a8f4e", "#9aa3ad")
LEAST = 0.01
"""What a logarithmic scale shows nothing below of."""
WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 760, 210, 110, 15, 10, 58


@dataclass(frozen=True)
class Chart:
    """Bars in groups, along one scale."""

    title: str
    unit: str
    groups: list[tuple[str, dict[str, float]]]
    logarithmic: bool = False

    def svg(self) -> str:
        names = list(dict.fromkeys(name for _, bars in self.groups for name in bars))
        colours = {name: COLOURS.get(name, OTHERS[at % len(OTHERS)]) for at, name in enumerate(names)}
        height = TOP + sum(len(bars) * BAR + GAP for _, bars in self.groups) + 8
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            _text(12, 20, self.title, size=15),
        ]
        x = 12.0
        for name in names if len(names) > 1 else ():
            out += [_bar(x, 30, 11, 11, colours[name]), _text(x + 16, 40, name)]
            x += 32 + 7 * len(name)
        y = TOP
        for label, bars in self.groups:
            out.append(_text(LEFT - 8, y + len(bars) * BAR / 2 + 4, label, anchor="end"))
            for name, value in bars.items():
                length = self._length(value)
                out += [
                    _bar(LEFT, y, length, BAR - 2, colours[name]),
                    _text(LEFT + length + 5, y + 11, self._words(value)),
                ]
                y += BAR
            y += GAP
        return "\n".join([*out, "</svg>", ""])

    def _length(self, value: float) -> float:
        values = [value for _, bars in self.groups for value in bars.values()]
        room, most, least = WIDTH - LEFT - RIGHT, max(values), min(values)
        if not self.logarithmic:
            return max(1.0, room * max(0.0, value) / most)
        start = 10 ** math.floor(math.log10(max(least, LEAST)))
        return max(1.0, room * math.log(max(value, LEAST) / start) / math.log(max(most, 10 * LEAST) / start))

    def _words(self, value: float) -> str:
        return f"{value:,.0f} {self.unit}" if value >= 100 else f"{value:.3g} {self.unit}"


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" height="{height}" fill="{colour}"/>'


def _text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}" fill="#222">{escape(words)}</text>'


def _size(count: int) -> str:
    return f"{count // 1000} KB" if count >= 1000 else f"{count} B"


def sink(rows: list[Row]) -> dict[str, Chart]:
    series = {
        "ours": "ours",
        "sdk_batch_kept": "sdk batches, links kept",
        "sdk_batch": "sdk batches",
        "sdk_single": "sdk single",
        "noop": "send left out",
    }

    def groups(figure: str) -> list[tuple[str, dict[str, float]]]:
        return [
            (
                f"{_size(row['bytes'])}, {row['entities']} entit{'y' if row['entities'] == 1 else 'ies'}",
                {name: row[f"{key}_{figure}"] for key, name in series.items()},
            )
            for row in rows
        ]

    return {
        "sink-rate": Chart("Messages a second through Spark (logarithmic)", "/s", groups("per_s"), logarithmic=True),
        "sink-cpu": Chart("Processor time of the workers for a message (logarithmic)", "µs", groups("cpu_us"), True),
    }


def syphon(rows: list[Row]) -> dict[str, Chart]:
    groups = [
        (
            f"{row['rtt_ms']} ms round trip, {row['depth']:,} deep",
            {"ours": row["ours_per_s"], "sdk loop": row["sdk_per_s"], "sdk loop, lists": row["sdk_list_per_s"]},
        )
        for row in rows
    ]
    return {"syphon-rate": Chart("Messages a second out of a backlog queue (logarithmic)", "/s", groups, True)}


def batch(rows: list[Row]) -> dict[str, Chart]:
    groups = [(f"{row['case']}, {row['entities']}", {"overhead": max(1.0, row["overhead_ms"])}) for row in rows]
    return {
        "batch-overhead": Chart("What the sink adds to a micro-batch (case, entities; logarithmic)", "ms", groups, True)
    }


def failover(rows: list[Row]) -> dict[str, Chart]:
    groups = [
        (
            f"{row['fault']}, interval {row['interval_s']:g} s",
            {"to the backlog": row["failover_s"], "back to the primary": row["failback_s"]},
        )
        for row in rows
    ]
    return {"failover-seconds": Chart("From fault and from heal to the first accept", "s", groups)}


def scale(rows: list[Row]) -> dict[str, Chart]:
    charts = {}
    for case, words in (("entities", "entities"), ("bytes", "message size"), ("depth", "backlog depth")):
        mine = [row for row in rows if row["case"] == ("size" if case == "bytes" else case)]
        if mine:
            groups = [(_size(row[case]) if case == "bytes" else f"{row[case]:,}", _sending(row)) for row in mine]
            charts[f"scale-{case}"] = Chart(f"Processor time for a message, by {words}", "µs", groups)
    return charts


def _sending(row: Row) -> dict[str, float]:
    """Without the sink's job only where there is one."""
    bars = {"ours": row["ours_cpu_us"]}
    return {**bars, "send left out": row["noop_cpu_us"]} if "noop_cpu_us" in row else bars


def charts_of(rows: list[Row]) -> dict[str, Chart]:
    keys = rows[0].keys()
    for key, make in (
        ("sdk_single_per_s", sink),
        ("rtt_ms", syphon),
        ("overhead_ms", batch),
        ("fault", failover),
        ("worker_peak_mb", scale),
    ):
        if key in keys:
            return make(rows)
    raise SystemExit(f"no chart for rows with {', '.join(keys)}")
