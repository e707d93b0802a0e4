"""Well-known sets of mathematical problems: where they are, their columns, and how the answer stands in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

FinalAnswer = Literal["whole", "after_hashes", "boxed"]
BenchmarkName = Literal[
    "gsm8k", "math", "math500", "aime24", "aime25", "amc23", "cmath", "minerva", "olympiad", "deepscaler"
]  # fmt: skip


@dataclass(frozen=True)
class Benchmark:
    """One set. Without `heldout`, a share of its training questions is held out; without `train`, it is for evaluation.

    `final_answer` says where in the answer column the right answer stands; `answer_else` is that column's name in other
    copies of the set.
    """

    hub: str
    subset: str | None
    train: str | None
    heldout: str | None
    question: str
    answer: str
    final_answer: FinalAnswer = "whole"
    id: str | None = None
    kind: str | None = None
    answer_else: str | None = None


BENCHMARKS: Mapping[BenchmarkName, Benchmark] = {
    "gsm8k": Benchmark("openai/gsm8k", "main", "train", "test", "question", "answer", "after_hashes"),
    "math": Benchmark(
        "DigitalLearningGmbH/MATH-lighteval", None, "train", "test", "problem", "solution", "boxed", kind="level"
    ),
    "math500": Benchmark(
        "HuggingFaceH4/MATH-500", None, None, "test", "problem", "answer", id="unique_id", kind="level"
    ),
    "aime24": Benchmark(
        "HuggingFaceH4/aime_2024", None, None, "train", "problem", "answer", id="id", answer_else="final_answer"
    ),
    "aime25": Benchmark("math-ai/aime25", None, None, "test", "problem", "answer", id="id"),
    "amc23": Benchmark("math-ai/amc23", None, None, "test", "question", "answer", id="id"),
    "cmath": Benchmark("weitianwen/cmath", None, "validation", "test", "question", "golden", kind="grade"),
    "minerva": Benchmark("math-ai/minervamath", None, None, "test", "question", "answer"),
    "olympiad": Benchmark(
        "Hothan/OlympiadBench", "OE_TO_maths_en_COMP", None, "train", "question", "final_answer", id="id",
        kind="subfield",
    ),
    "deepscaler": Benchmark("agentica-org/DeepScaleR-Preview-Dataset", None, "train", None, "problem", "answer"),
}  # fmt: skip
