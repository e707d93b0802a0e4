"""Every fenced block of the documentation does what it says."""

from collections import Counter
from pathlib import Path

import pytest
from doc_blocks import REASONS, RUN, blocks, documents
from doc_page import ROOT, run_page

PAGES = [str(page.relative_to(ROOT)) for page in documents(ROOT)]


def _fences(text: str) -> int:
    """Opening fences, counted by hand: lines that start with three backticks, of which every second one closes."""
    return sum(line.lstrip(" >").startswith("```") for line in text.splitlines()) // 2


@pytest.mark.slow  # four minutes
@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf8")
    report = run_page(text, page, tmp_path)
    failures = [f"{page}:{line}: {why}" for line, why in report.failed]
    assert not failures, "\n\n".join(failures)
    done = [*report.ran, *report.skipped, *report.shown]
    assert len(done) == _fences(text)
    assert all(block.language in RUN for block in report.ran)


def test_skips_are_few_and_have_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    found = [(page, block) for page in PAGES for block in blocks((ROOT / page).read_text(encoding="utf8"))]
    doing = [block for _, block in found if block.language in RUN]
    skipped = [(page, block) for page, block in found if block.action == "skip"]
    reasons = Counter(block.argument for _, block in skipped)
    with capsys.disabled():  # so that the run says what nobody ran
        print(f"\nblocks: {len(found)}; of {len(doing)} that do something {len(skipped)} are skipped: {dict(reasons)}")
    assert set(reasons) <= set(REASONS)
    assert len(skipped) <= len(doing) / 2
