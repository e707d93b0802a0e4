"""The page's own files, and what a browser may do with them: nothing but run the page's scripts and use its styles."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

PAGE = Path(__file__).parent / "page"


def served_policy(html: str) -> str:
    """The Content-Security-Policy of the served page: own files, and the scripts within the page by their hashes."""
    hashes = " ".join(fingerprint(script) for script in inline_scripts(html))
    return (
        f"default-src 'none'; script-src 'self' {hashes}; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def report_policy(scripts: list[str], styles: list[str]) -> str:
    """The same of a report, whose modules are data: URLs; it may connect to nothing at all."""
    return (
        f"default-src 'none'; script-src data: {' '.join(map(fingerprint, scripts))}; "
        f"style-src {' '.join(map(fingerprint, styles))}; img-src data:; base-uri 'none'; form-action 'none'"
    )


def inline_scripts(html: str) -> list[str]:
    """The contents of a page's scripts that are not in files of their own."""
    found = re.finditer(r"<script\b([^>]*)>(.*?)</script>", html, flags=re.DOTALL)
    return [each[2] for each in found if not re.search(r"\bsrc\s*=", each[1])]


def fingerprint(text: str) -> str:
    """How a Content-Security-Policy names a script or a style by its contents."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf8')).digest()).decode('ascii')}'"
