"""A picture, in SVG, of which chips have which part of a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

# A part of a tensor of two dims: begin and end of its rows, of its columns.
Part = tuple[int, int, int, int]

_LONGER = 480  # pixels of the longer side
_SHORTEST = 48
_MARGIN = 40


def svg(rows: int, columns: int, chips_of: Mapping[Part, Sequence[int]], title: str) -> str:
    """The picture of a tensor: a rectangle for each part, with the numbers of the chips that have it.

    A part that more chips have is paler.
    """
    longer = max(rows, columns, 1)
    width, height = (max(_SHORTEST, _LONGER * n / longer) for n in (columns, rows))
    most = max(map(len, chips_of.values()), default=1)
    n_chips = 1 + max((chip for chips in chips_of.values() for chip in chips), default=0)
    shapes = []
    for (top, bottom, left, right), chips in chips_of.items():
        x, y = (
            _MARGIN + side * at / max(n, 1)
            for side, at, n in ((width, left, columns), (height, top, rows))
        )
        w, h = width * (right - left) / max(columns, 1), height * (bottom - top) / max(rows, 1)
        hue = 360 * min(chips) // n_chips
        light = 70 + 20 * (len(chips) - 1) // max(most - 1, 1) if most > 1 else 70
        name = escape(", ".join(map(str, chips)))
        size = max(6, min(16, 1.6 * w / max(len(name), 1), 0.8 * h))
        shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" '
            f'fill="hsl({hue},60%,{light}%)" stroke="black"/>'
            f'<text x="{x + w / 2:.1f}" y="{y + h / 2:.1f}" font-size="{size:.1f}" dy="0.35em">{name}</text>'
        )
    full = (width + 2 * _MARGIN, height + 2 * _MARGIN)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{full[0]:.0f}" height="{full[1]:.0f}" '
            'font-family="sans-serif" text-anchor="middle">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{full[0] / 2:.0f}" y="{_MARGIN / 2:.0f}" font-size="12">{escape(title)}</text>',
            *shapes,
            "</svg>\n",
        ]
    )
