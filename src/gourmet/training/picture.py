"""A run's curves as an SVG: loss, and every measure that is a share, over the epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

_WIDTH: Final = 720
_HEIGHT: Final = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 200, 24, 36
_COLOURS: Final = ("#b3261e", "#1b5e9b", "#2e7d32", "#8e5a00", "#6a3d9a", "#00796b", "#555555")
_NOT_CURVES: Final = ("epoch", "size", "rate", "seconds")


def curves(lines: Sequence[dict[str, Any]]) -> str:
    """Draw `lines`, one an epoch. Shares have the axis 0 to 1; a loss is drawn over its own range."""
    names = (
        [k for k, v in lines[-1].items() if k not in _NOT_CURVES and isinstance(v, float)] if lines else []
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12" role="img" aria-label="training curves">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        *_axes(lines),
    ]
    for index, name in enumerate(names):
        colour = _COLOURS[index % len(_COLOURS)]
        values = [float(line[name]) for line in lines if name in line]
        low, high = (0.0, 1.0) if max(values) <= 1.0 else (min(values), max(values))
        points = [(_x(i, len(values)), _y((v - low) / ((high - low) or 1.0))) for i, v in enumerate(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
        where = _TOP + 18 * index + 10
        text = escape(f"{name.replace('_', ' ')}: {values[0]:.3f} → {values[-1]:.3f}")
        parts.append(f'<text x="{_WIDTH - _RIGHT + 16}" y="{where}" fill="{colour}">{text}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _axes(lines: Sequence[dict[str, Any]]) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(share)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.2f}</text>')
    last_size = None
    for index, line in enumerate(lines):
        x = _x(index, len(lines))
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{line["epoch"]}</text>')
        if line.get("size") != last_size:
            last_size = line.get("size")
            parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#bbbbbb" stroke-dasharray="3 3"/>')
            parts.append(f'<text x="{x + 3:.1f}" y="{_TOP - 8}" fill="#777777">{last_size} px</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 4}" fill="#777777">epoch</text>')
    return parts


def _x(index: int, count: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (index / (count - 1) if count > 1 else 0.5)


def _y(share: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1.0 - share)
