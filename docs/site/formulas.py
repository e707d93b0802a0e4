"""Formulas as SVG, set by matplotlib's mathtext: no script and no font is needed to read them."""

from __future__ import annotations

import html
import re
from functools import cache

from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextToPath

EM = 100.0  # units of the drawing in one em
LETTER = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}


@cache
def formula(tex: str, display: bool) -> str:
    """A formula as inline SVG, sized in em and in the text's colour; its LaTeX is what a screen reader reads.

    Raises `ValueError` for LaTeX that mathtext does not know, such as environments.
    """
    font = FontProperties(size=EM, math_fontfamily="stix")
    drawn, text = TextToPath(), f"${_known(' '.join(tex.split()))}$"
    vertices, codes = drawn.get_text_path(font, text, ismath=True)
    width, height, depth = drawn.get_text_width_height_descent(text, font, ismath=True)
    pieces = []
    for points, code in Path(vertices, codes).iter_segments(simplify=False, curves=True):
        if code == Path.CLOSEPOLY:
            pieces.append("Z")
        else:
            pairs = zip(points[::2], points[1::2], strict=True)
            pieces.append(LETTER[code] + " ".join(f"{x:.0f} {-y:.0f}" for x, y in pairs))
    style = f"width:{width / EM:.2f}em;height:{height / EM:.2f}em;vertical-align:{-depth / EM:.2f}em"
    box = f"0 {depth - height:.0f} {width:.0f} {height:.0f}"
    label = html.escape(tex, quote=True)
    svg = (
        f'<svg class="formula" role="img" aria-label="{label}" viewBox="{box}" style="{style}">'
        f'<path d="{"".join(pieces)}"/></svg>'
    )
    return f'<div class="formula" tabindex="0">{svg}</div>' if display else svg


def _known(tex: str) -> str:
    """The same in mathtext's words: no sizes of brackets, no small fractions, braces where LaTeX needs none."""
    tex = re.sub(r"\\[bB]igg?[lr]?(?![a-zA-Z])", "", tex).replace("\\tfrac", "\\frac")
    tex = re.sub(r"\\([lg])e(?![a-zA-Z])", r"\\\1eq", tex)
    return re.sub(r"\\frac(\w)(\w)", r"\\frac{\1}{\2}", tex)
