#!/usr/bin/env python3
"""Draws docs/measurements/proof.svg, the picture of the README, from proof.json beside it.

    draw_proof.py            writes the picture
    draw_proof.py --check    leaves with 1 where the picture is not what the figures give, or where a
                             figure does not stand in the document that it names
    draw_proof.py FIGURES SVG   draws figures of one's own, such as those of the demo

Left: what programs leave of a model at the same bits, a row for each method, a shape and a colour for each
program. Right: KL divergence (logarithmic) over stored bits per weight. The picture has no script and
follows the reader's colour scheme; every mark has a title, so that it can be read without being seen.
"""
import json
import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "measurements"
WIDTH, HEIGHT = 900, 390
PROGRAMS = ("llmq", "llm-compressor", "GPTQModel")
TOP, BOTTOM = 108, 330  # of both panels
ROWS_FROM, ROWS_TO, ROWS_MOST = 196, 480, 0.35  # x of KL 0 and of the largest
CURVE_FROM, CURVE_TO = 570, 880
BITS_FROM, BITS_TO = 4.0, 8.6
KL_FROM, KL_TO = 0.001, 0.5
STYLE = """
  svg { font: 12.5px system-ui, sans-serif; background: #ffffff }
  text { fill: #1f2328 } .quiet { fill: #59636e } .title { font-size: 17px; font-weight: 600 }
  .heading { font-weight: 600 } .grid { stroke: #d1d9e0; stroke-width: 1 }
  .p0 { fill: #0a6e4f; stroke: #0a6e4f } .p1 { fill: #b45309; stroke: #b45309 }
  .p2 { fill: #7c3aed; stroke: #7c3aed } path.curve { fill: none; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117 } text { fill: #e6edf3 } .quiet { fill: #9198a1 }
    .grid { stroke: #2a3038 } .p0 { fill: #3fb68b; stroke: #3fb68b }
    .p1 { fill: #f0a04b; stroke: #f0a04b } .p2 { fill: #b794f6; stroke: #b794f6 }
  }
"""


def text(x, y, words, kind="", anchor="start"):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def mark(x, y, program, words):
    """A circle, a square or a triangle, which says itself what it is."""
    name, shape = [
        ("circle", f'class="p0" cx="{x:.1f}" cy="{y:.1f}" r="5"'),
        ("rect", f'class="p1" x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9"'),
        ("path", f'class="p2" d="M{x:.1f} {y - 6:.1f} l6 10 h-12 z"'),
    ][PROGRAMS.index(program)]
    return f"<{name} {shape}><title>{escape(words)}</title></{name}>"


def legend(programs):
    parts, x = [], ROWS_FROM
    for program in programs:
        parts += [mark(x, 92, program, program), text(x + 11, 96.5, program)]
        x += 30 + 7.2 * len(program)
    return parts


def rows_panel(panel):
    def x_of(kl):
        return ROWS_FROM + min(kl / ROWS_MOST, 1) * (ROWS_TO - ROWS_FROM)

    programs = {entry["program"] for row in panel["rows"] for entry in row["marks"]}
    parts = [text(20, 76, panel["heading"], "heading"), *legend([p for p in PROGRAMS if p in programs])]
    for kl in (0, 0.1, 0.2, 0.3):
        parts.append(f'<path class="grid" d="M{x_of(kl):.1f} {TOP} V{BOTTOM}"/>')
        parts.append(text(x_of(kl), BOTTOM + 19, f"{kl:g}", "quiet", "middle"))
    parts.append(text(ROWS_TO, BOTTOM + 40, panel["axis"], "quiet", "end"))
    step = (BOTTOM - TOP) / len(panel["rows"])
    for number, row in enumerate(panel["rows"]):
        y = TOP + step * (number + 0.5)
        parts.append(text(ROWS_FROM - 12, y + 4, row["label"], "", "end"))
        parts.append(f'<path class="grid" d="M{ROWS_FROM} {y:.1f} H{ROWS_TO}"/>')
        for entry in row["marks"]:
            words = f'{entry["program"]}, {row["label"]}: KL {entry["kl"]}'
            parts.append(mark(x_of(float(entry["kl"])), y, entry["program"], words))
        least = row["marks"][0]
        parts.append(text(x_of(float(least["kl"])), y - 9, least["kl"], "quiet", "middle"))
    return parts


def curve_panel(panel):
    def x_of(bits):
        return CURVE_FROM + (bits - BITS_FROM) / (BITS_TO - BITS_FROM) * (CURVE_TO - CURVE_FROM)

    def y_of(kl):
        share = math.log(min(max(kl, KL_FROM), KL_TO) / KL_FROM) / math.log(KL_TO / KL_FROM)
        return BOTTOM - share * (BOTTOM - TOP)

    parts = [text(CURVE_FROM - 44, 76, panel["heading"], "heading")]
    for kl in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        parts.append(f'<path class="grid" d="M{CURVE_FROM} {y_of(kl):.1f} H{CURVE_TO}"/>')
        parts.append(text(CURVE_FROM - 8, y_of(kl) + 4, f"{kl:g}", "quiet", "end"))
    for bits in (4, 5, 6, 7, 8):
        parts.append(f'<path class="grid" d="M{x_of(bits):.1f} {TOP} V{BOTTOM}"/>')
        parts.append(text(x_of(bits), BOTTOM + 19, str(bits), "quiet", "middle"))
    parts.append(text(CURVE_TO, BOTTOM + 40, panel["axis"], "quiet", "end"))
    places = [(x_of(float(m["bits"])), y_of(float(m["kl"]))) for m in panel["marks"]]
    line = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    joined = panel.get("joined", True)
    if joined:
        parts.append(f'<path class="p{PROGRAMS.index(panel["program"])} curve" d="M{line}"/>')
    for (x, y), entry in zip(places, panel["marks"]):
        parts.append(mark(x, y, panel["program"], f'{entry["bits"]} bits per weight: KL {entry["kl"]}'))
        if not joined:  # crowded, and the other panel says it
            continue
        if x > (CURVE_FROM + CURVE_TO) / 2:
            parts.append(text(x - 10, y + 4, entry["kl"], "quiet", "end"))
        else:
            parts.append(text(x + 9, y - 5, entry["kl"], "quiet"))
    return parts


def picture(figures):
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="{escape(figures["title"])}">',
        f"<style>{STYLE}</style>",
        text(20, 26, figures["title"], "title"),
        text(20, 46, figures["subtitle"], "quiet"),
        *rows_panel(figures["rows"]),
        *curve_panel(figures["curve"]),
        "</svg>",
        "",
    ]
    return "\n".join(parts)


def unfounded(figures):
    """Figures that do not stand in the document that they name."""
    entries = [entry for row in figures["rows"]["rows"] for entry in row["marks"]]
    for entry in entries + figures["curve"]["marks"]:
        text_there = (FOLDER / entry["source"]).read_text(encoding="utf-8")
        for key in ("kl", "bits"):
            if entry.get(key, "") not in text_there:
                yield f'{entry["source"]} has no {entry[key]}'


def main():
    if len(sys.argv) == 3:
        figures = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        Path(sys.argv[2]).write_text(picture(figures), encoding="utf-8")
        return 0
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__.strip())
    figures = json.loads((FOLDER / "proof.json").read_text(encoding="utf-8"))
    faults = list(unfounded(figures))
    drawn, path = picture(figures), FOLDER / "proof.svg"
    if not sys.argv[1:]:
        path.write_text(drawn, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != drawn:
        faults.append("proof.svg is not what proof.json gives: run scripts/draw_proof.py")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
