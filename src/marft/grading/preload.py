"""What the fork server loads before it makes children, and does once, so that they are warm from their first call.

The parser of LaTeX learns its tables from what it parses (a first answer takes a second, the next ones hundredths), and
children inherit what it has learnt.
"""

from __future__ import annotations

import marft.environments.reasoning  # noqa: F401  (its scorers run in children too)
from marft.grading.math_answer import equal_by_algebra

TYPICAL = (
    (r"\frac{3\sqrt{5}}{2}+\pi", r"1-\frac{1}{x}"),
    (r"\left(\frac{1}{2}, -3, 2^{10}\right)", "(a+b)(c-1), 7"),
    (r"(-\infty, 2] \cup [3, 4)", r"\{1, -2, \sqrt[3]{2}\}"),
    (r"\begin{pmatrix} 1 & -2 \\ \frac{1}{2} & x \end{pmatrix}", r"x^2+3xy-4 = 0"),
    (r"3 \pm 2i", r"\sin x \cdot \log_2 5"),
    (r"x \le 4", "5!"),
)
for answer, gold in TYPICAL:
    equal_by_algebra(answer, gold)
