"""The benchmarks' arithmetic, and that each runs on the tiny model; how long anything takes decides nothing here."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import grading, iteration, memory, rollout, side_by_side, stopwatch, turns, update
from benchmarks.peers import LockStep, TrlSetting, missing, plain_model
from benchmarks.roofline import Work, roofline
from benchmarks.side_by_side import Table, exponent, interleave, markdown, publish, ratio, verdict
from benchmarks.stopwatch import Stopwatch, watched
from benchmarks.workload import Lengths, Size, checksum, endless, experiment, level, question
from torch.utils.flop_counter import FlopCounterMode

from marft.config import ModelConfig
from marft.learn.clock import Clock
from marft.learn.train import Training, iterate
from marft.models.base import load_base
from marft.models.chat import Exchange
from marft.run.progress import Silent
from marft.team import Team, build_team


def team_of(size: Size) -> Team:
    config = experiment(size, "tiny", "float32")
    return build_team(config, "test", endless(load_base(config.model, "cpu")))


class TestSideBySide:
    def test_a_ratio_is_the_median_of_pairs_not_the_ratio_of_medians(self) -> None:
        found = ratio([1.0, 2.0, 30.0], [1.0, 4.0, 10.0])
        assert (found.low, found.median, found.high) == (0.5, 1.0, 3.0)
        assert float(np.median([1, 2, 30]) / np.median([1, 4, 10])) == 0.5

    def test_measured_ratios_pair_the_same_round(self) -> None:
        one, other = iter([9.0, 1.0, 2.0, 3.0]), iter([9.0, 2.0, 8.0, 6.0])
        found = interleave({"one": lambda: next(one), "other": lambda: next(other)}, rounds=3)
        assert found.values == {"one": (1.0, 2.0, 3.0), "other": (2.0, 8.0, 6.0)}
        assert found.median("other") == 6.0
        assert found.ratio("one", "other").median == 0.5

    def test_rounds_interleave_and_begin_with_another_each_time(self) -> None:
        order: list[str] = []

        def named(name: str) -> Any:
            return lambda: order.append(name) or 0.0

        interleave({name: named(name) for name in "abc"}, rounds=3, warmups=0)
        assert "".join(order) == "abcbcacab"

    def test_an_exponent_is_the_slope_of_least_squares_in_logarithms(self) -> None:
        assert exponent([1, 2, 4], [3 * size**1.5 for size in (1, 2, 4)]) == pytest.approx(1.5)
        sizes, costs = [1.0, 2.0, 4.0, 7.0], [2.0, 3.1, 9.4, 11.0]
        assert exponent(sizes, costs) == pytest.approx(np.polyfit(np.log(sizes), np.log(costs), 1)[0])

    def test_a_verdict_names_its_bound(self) -> None:
        assert verdict(3.0, at_least=3.0) == {"target": "≥ 3", "met": "yes"}
        assert verdict(0.46, at_most=0.45) == {"target": "≤ 0.45", "met": "no"}

    def test_a_table_is_markdown_with_a_cell_for_every_column(self) -> None:
        rows: list[dict[str, Any]] = [{"who": "a", "rate": 1234.5}, {"who": "b", "rate": 0.1234, "x": None, "n": 12345}]
        assert markdown(Table("Title", rows, "A note.")) == (
            "## Title\n\n| who | rate | x | n |\n|---|---|---|---|\n"
            "| a | 1,234 |  |  |\n| b | 0.123 |  | 12345 |\n\nA note."
        )

    def test_a_report_says_on_what_it_was_measured(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        header = side_by_side.machine("float32", 3)
        publish("name", header, [Table("T", [{"a": 1.5}])], tmp_path / "report.json")
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["tables"] == [{"title": "T", "rows": [{"a": 1.5}], "note": ""}]
        assert (report["machine"]["dtype"], report["machine"]["threads"]) == ("float32", 3)
        shown = capsys.readouterr().out
        assert "float32, 3 threads" in shown
        assert f"torch {torch.__version__}" in shown


class TestRoofline:
    def test_the_work_of_a_forward_pass_is_what_torch_counts(self) -> None:
        model, _ = plain_model("tiny", "float32")
        work = Work.of(model)
        tokens = torch.arange(12)[None] % 50
        with FlopCounterMode(display=False) as counter:
            states = model.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
            model.get_output_embeddings()(states[0, -5:])
        counted = counter.get_flop_counts()["Global"]
        products = sum(
            count for kind, count in counted.items() if "attention" not in str(kind) and "bmm" not in str(kind)
        )
        assert work.forward(12, 5) == products  # `bmm`: what rotary embeddings multiply

    def test_a_pair_costs_a_product_with_its_key_and_one_with_its_value(self) -> None:
        model, _ = plain_model("tiny", "float32")
        config = model.config
        assert Work.of(model).pair == 2 * 2 * config.hidden_size * config.num_hidden_layers

    def test_a_step_reads_all_weights_once_and_every_cached_token(self) -> None:
        model, _ = plain_model("tiny", "bfloat16")
        work = Work.of(model)
        assert work.weight_bytes == 2 * (work.linear + work.head)
        kv = 2 * model.config.num_key_value_heads * (model.config.hidden_size // model.config.num_attention_heads)
        assert work.decode(3, 10) == 3 * work.weight_bytes + 10 * 2 * kv * model.config.num_hidden_layers

    def test_both_ceilings_are_measured(self) -> None:
        found = roofline(torch.float32)
        assert found.flops > 0
        assert found.bytes > 0


class TestWorkload:
    def test_lengths_are_within_bounds_and_stay_when_there_are_more(self) -> None:
        lengths = Lengths(3, 9).draw(40, 2)
        assert {length for row in lengths for length in row} == set(range(3, 10))
        assert Lengths(3, 9).draw(50, 2)[:40] == lengths

    def test_levelled_lengths_have_the_same_sum_and_differ_by_one(self) -> None:
        lengths = Lengths(8, 128).draw(32, 2)
        for mixed, equal in zip(np.array(lengths).T, np.array(level(lengths)).T, strict=True):
            assert equal.sum() == mixed.sum()
            assert equal.max() - equal.min() <= 1

    def test_trl_reads_the_prompt_that_marft_gives(self) -> None:
        base = load_base(ModelConfig(name="tiny"), "cpu")
        theirs = base.chat.tokenizer.apply_chat_template(
            [{"role": "user", "content": question(3)}], add_generation_prompt=True, tokenize=False
        )
        assert base.chat.prompt("", [Exchange(question(3))]) == base.chat.encode(theirs)

    def test_rewards_tie_only_for_equal_texts(self) -> None:
        texts = [question(number) for number in range(200)]
        assert len({checksum(text) for text in texts}) == len(set(texts))
        assert all(0 <= checksum(text) < 1 for text in texts)


class TestPeers:
    @pytest.mark.parametrize(("merged", "cache"), [(False, None), (True, None), (True, "static")])
    def test_lock_step_gives_every_row_its_own_length(self, merged: bool, cache: str | None) -> None:
        peer = LockStep(*plain_model("tiny", "float32"), ("a", "b"), merged, cache)
        rows, steps = peer.replies("b", [[9] * 5, [8] * 11, [7] * 2], [4, 1, 6])
        assert [len(row) for row in rows] == [4, 1, 6]
        assert steps == 6

    def test_a_missing_package_is_named(self) -> None:
        assert missing("no_such_package") == "no_such_package is not installed (pip install -e '.[bench]')"
        assert missing("json") is None


class TestStopwatch:
    def test_an_inner_measurement_counts_for_itself_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0])  # phase, backward, head in, head out, backward out, phase out
        monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: next(ticks))
        watch = Stopwatch()
        with watch.phase("update"), watch.kind("backward"), watch.kind("head"):
            pass
        assert dict(watch.compute) == {("update", "backward"): 2.0 + 8.0, ("update", "head"): 4.0}
        assert watch.seconds == {"update": 31.0}
        assert watch.kinds("score") == dict.fromkeys(stopwatch.KINDS, 0.0)

    def test_every_kind_of_compute_of_an_iteration_is_seen(self) -> None:
        team, watch = team_of(Size(tasks=1, samples=2, tokens=4)), Stopwatch()
        theirs = torch.autograd.backward, Clock.phase
        with watched(team, watch):
            iterate(Training.of(team), 0, Clock(), Silent())
        assert (torch.autograd.backward, Clock.phase) == theirs
        assert all(spent > 0 for spent in watch.kinds().values())
        assert watch.kinds("rollout")["backward"] == 0
        assert watch.kinds("update")["optimiser"] > 0
        assert all(sum(watch.kinds(phase).values()) <= spent for phase, spent in watch.seconds.items())


def run(module: ModuleType, folder: Path, *arguments: str) -> dict[str, Any]:
    """The report of a benchmark's command."""
    file = folder / "report.json"
    module.main(["--model", "tiny", "--json", str(file), *arguments])
    report: dict[str, Any] = json.loads(file.read_text())
    assert "cpu" in report["machine"]
    return report


class TestCommands:
    def test_rollout(self, tmp_path: Path) -> None:
        tables = run(rollout, tmp_path)["tables"]
        play, ceilings, _, _, *lengths, adapters, prompts = tables
        assert play["rows"][0]["competitor"] == "marft"
        assert all(row["useful tokens/s"] > 0 for row in play["rows"])
        assert all(row["passes"] > 0 for row in ceilings["rows"])
        assert [len(each["rows"]) for each in (*lengths, adapters)] == [2, 2, 2]
        assert all(row["computed"] < row["prompt tokens"] for row in prompts["rows"])
        assert "was dropped" in prompts["note"]

    def test_update(self, tmp_path: Path) -> None:
        apart, shared = run(update, tmp_path)["tables"]
        computed = [{row["competitor"]: row["tokens computed"] for row in each["rows"]} for each in (apart, shared)]
        assert all(row["tokens/s"] > 0 for each in (apart, shared) for row in each["rows"])
        assert len(set(computed[0].values())) == 1
        assert computed[1]["marft"] < min(count for name, count in computed[1].items() if name != "marft")

    def test_iteration(self, tmp_path: Path) -> None:
        where, share, ceilings = run(iteration, tmp_path, "--part", "share")["tables"]
        whole = where["rows"][-1]
        assert whole["phase"] == "whole iteration"
        parts = sum(whole[kind] for kind in stopwatch.KINDS)
        assert parts + whole["rest"] == pytest.approx(whole["seconds"])
        assert sum(row["seconds"] for row in where["rows"][:-1]) == pytest.approx(whole["seconds"])
        assert len(share["rows"]) == 2
        assert {row["phase"] for row in ceilings["rows"]} == {"rollout", "score", "update"}
        (growth,) = run(iteration, tmp_path, "--part", "growth")["tables"]
        assert [row["more"] for row in growth["rows"]] == ["episodes", "agents", "reply length"]

    def test_memory_of_children(self, tmp_path: Path) -> None:
        (agents,) = run(memory, tmp_path, "--quick", "--part", "agents")["tables"]
        assert [row["agents"] for row in agents["rows"]] == [1, 4]
        assert all(100 < row["peak MiB"] < 4000 for row in agents["rows"])

    @pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed (pip install -e '.[bench]')")
    def test_trl_does_the_same_work(self) -> None:
        size = Size(tasks=2, samples=2, tokens=5)
        with turns.Child(turns.Competitor("trl", size, "tiny", "float32", 1, vars(TrlSetting(4, False)))) as child:
            child.ready()
            assert [(each["replies"], each["reply_tokens"]) for each in (child.step(), child.step())] == [(4, 20)] * 2

    @pytest.mark.parametrize("module", [iteration, memory])
    def test_a_peer_that_is_not_installed_is_named(
        self, module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "missing", lambda package: f"{package} is not there")
        if module is memory:
            monkeypatch.setattr(memory, "peak", lambda competitor: 1.0)
        (table,) = run(module, tmp_path, "--part", "trl")["tables"]
        assert table["rows"] == []
        assert table["note"] == "Not measured: trl is not there."

    def test_a_child_that_fails_says_why(self) -> None:
        child = turns.Child(turns.Competitor("marft", Size(), "no-such-model", "float32"))
        with child, pytest.raises(SystemExit, match="no-such-model"):
            child.ready()

    def test_grading(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(grading, "generated", lambda count, algebra: [("\\boxed{2}", "2"), ("\\boxed{3}", "2")])
        file = tmp_path / "report.json"
        monkeypatch.setattr(sys, "argv", ["grading", "--quick", "--workers", "1", "--json", str(file)])
        grading.main()
        (speed,) = json.loads(file.read_text())["tables"]
        assert [(row["grades"], row["right"]) for row in speed["rows"]] == [(2, 1), (2, 1)]
