"""One HTML page with everything in it: the frame and the pieces of every report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

_STYLE: Final = """
body{font:15px/1.55 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1.2rem;color:#222}
h1{font-size:1.7rem;margin:0 0 .6rem}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}
.when{color:#666;margin:.2rem 0 1rem}
table{border-collapse:collapse;margin:.8rem 0;font-variant-numeric:tabular-nums}
td,th{padding:.25rem .5rem;white-space:nowrap;text-align:right;vertical-align:top;font-size:13.5px}
th{color:#555;font-weight:600;font-size:13px}
th:first-child,td:first-child{text-align:left}tr+tr{border-top:1px solid #e3e3e3}
.facts td{text-align:left;white-space:normal}.wide{overflow-x:auto}
figure{margin:1.2rem 0}figcaption{font-weight:600;margin-bottom:.3rem}
figcaption small{display:block;font-weight:400;color:#666}svg,img{max-width:100%;height:auto}
.side{display:flex;flex-wrap:wrap;gap:1.5rem}.side figure{margin:0}
.claims li{margin:.35rem 0}
.seen::marker{content:"✓ ";color:#00795a}.unseen::marker{content:"✗ ";color:#b3261e}
.undecided::marker{content:"? ";color:#666}
.warning{border-left:4px solid #b3261e;background:#fdf3f2;padding:.5rem 1rem}
details{margin:.6rem 0}summary{cursor:pointer;font-weight:600}
pre{background:#f6f6f6;padding:.8rem;overflow-x:auto}
code{background:#f3f3f3;padding:.1rem .3rem}
"""


def document(
    title: str, parts: Iterable[str], *, when: str = "", command: str = "", style: str = "", says: str = ""
) -> str:
    """A whole page; `style` is what one report needs of its own, `says` what a list of them tells."""
    made = " · ".join(words for words in (escape(when), f"<code>{escape(command)}</code>") if words)
    said = f"<p class='when'>{made}</p>" if when or command else ""
    # Two runs of the same command are to be told apart by their tabs, too.
    named = f"{title} · {when[:16].replace('T', ' ')}" if when else title
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>{escape(named)}</title><meta name='description' content='{escape(says)}'>"
        f"<meta name='date' content='{escape(when)}'><style>{_STYLE}{style}</style>"
        f"<h1>{escape(title)}</h1>{said}{''.join(parts)}</html>\n"
    )


def paragraph(words: str) -> str:
    return f"<p>{escape(words)}</p>" if words else ""


def figure(title: str, more: str, drawing: str) -> str:
    said = f"<small>{escape(more)}</small>" if more else ""
    return f"<figure><figcaption>{escape(title)}{said}</figcaption>{drawing}</figure>"


def side_by_side(figures: Iterable[str]) -> str:
    return f"<div class='side'>{''.join(figures)}</div>"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Rows under their headings; `kind` "facts" is for a list of names and values."""
    head = "".join(f"<th>{escape(words)}" for words in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}" for cell in row) for row in rows)
    return f"<div class='wide'><table class='{kind}'>{f'<tr>{head}' if headings else ''}{body}</table></div>"


def bullets(said: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(words)}' for words in said)}</ul>"


def warning(title: str, said: Sequence[str]) -> str:
    """What a reader must not overlook; nothing where there is nothing."""
    return f"<div class='warning'>{escape(title)}{bullets(said)}</div>" if said else ""


def details(summary: str, *parts: str) -> str:
    """What is there for those who want to know."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(parts)}</details>"
