"""A model card: its front matter is the hub's, its numbers are those of the run's files."""

import json

import pytest
from huggingface_hub import ModelCard

from builders import config_of
from marft.config import parse_config
from marft.game.flexmg import build_game
from marft.run.card import Subject, about_serving, front_matter, hub_name, team_card
from marft.run.directory import RunDirectory
from marft.run.metrics import MetricsWriter


def interval(mean):
    return {"mean": mean, "low": mean / 2, "high": (1 + mean) / 2}


def report(mean, **more):
    played = {"reward": interval(mean / 4), "tokens": 12.5, "failed": 0, "kinds": {}}
    sampled = {"success": interval(mean), **played, "pass_at": {"1": mean, "4": mean + 0.25}}
    return {
        "tasks": 16,
        "samples": 4,
        "sampled": sampled,
        "greedy": {"success": interval(mean + 0.125), **played},
        **more,
    }


BEFORE, AFTER = report(0.123), report(
    0.456,
    influence={"ann": {"swapped": interval(0.25), "drop": 0.206, "loss": interval(0.206)}},
    retention={"ann": {"kl": 0.0125, "perplexity": 33.25, "base_perplexity": 32.5}},
)  # fmt: skip


@pytest.fixture
def subject(tmp_path):
    """Three of four iterations of a duo, evaluated before, at the third and at the fourth."""
    config = config_of("ann", {"name": "bob", "sees_task": False}, iterations=4, seed=7)
    run = RunDirectory.create(config, tmp_path / "mine")
    with MetricsWriter(run) as writer:
        for iteration in range(4):
            play = {"ann": {"replies": 1.0, "reply_tokens": 4.0}, "bob": {"replies": 2.0, "reply_tokens": 3.0}}
            writer.write(iteration, {"episodes": 6, "success": 0.5, "play": play})
    for number, each in ((0, BEFORE), (3, AFTER), (4, report(0.75))):
        run.write_evaluation(number, each)
    return Subject(run, config, build_game(config), 3)


def on_model(name, **changes):
    config = config_of("ann", "bob", model={"name": name, **changes})
    return Subject(RunDirectory.__new__(RunDirectory), config, build_game(config), 1)


def parsed(subject, **given):
    return ModelCard(front_matter(subject, **given) + "\n\n# x\n").data.to_dict()


def test_front_matter_is_what_the_hub_reads(subject, tmp_path):
    (tmp_path / "README.md").write_text(team_card(subject, "me/duo"), encoding="utf8")
    data = ModelCard.load(tmp_path / "README.md").data
    assert data.library_name == "peft"
    assert data.tags == ["marft", "multi-agent", "reinforcement-learning", "lora"]
    assert data.pipeline_tag == "text-generation"
    assert data.base_model is None  # the tiny model is on no hub
    assert data.license is None


def test_the_base_is_called_as_on_the_hub_and_its_licence_follows_where_it_is_known(tmp_path):
    found = parsed(on_model("smollm2-135m-instruct"))
    assert found["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (found["base_model_relation"], found["license"]) == ("adapter", "apache-2.0")
    found = parsed(on_model("Qwen/Qwen2.5-3B-Instruct"))
    assert found["base_model"] == "Qwen/Qwen2.5-3B-Instruct"
    assert "license" not in found
    found = parsed(on_model("Qwen/Qwen2.5-3B-Instruct", tuning="full"))
    assert (found["library_name"], found["base_model_relation"]) == ("transformers", "finetune")
    assert "lora" not in found["tags"]
    assert "base_model" not in parsed(on_model(str(tmp_path)))
    assert hub_name("nowhere") == ""


def test_a_team_of_two_models_names_both_and_an_agent_its_own():
    agents = [{"name": "ann"}, {"name": "bob", "model": "Qwen/Qwen2.5-3B-Instruct"}]
    config = config_of(*agents, model={"name": "smollm2-135m-instruct"})
    two = Subject(RunDirectory.__new__(RunDirectory), config, build_game(config), 1)
    both = ["HuggingFaceTB/SmolLM2-135M-Instruct", "Qwen/Qwen2.5-3B-Instruct"]
    assert parsed(two)["base_model"] == both
    assert "license" not in parsed(two)
    assert parsed(two, agents=("bob",))["base_model"] == both[1]


def test_the_numbers_are_those_of_the_files(subject):
    text = team_card(subject, "me/duo")
    reports = {
        number: json.loads((subject.run.path / "evaluations" / f"{number:06d}.json").read_text()) for number in (0, 3)
    }

    def told(found):
        return f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"

    assert "| before training | after 3 iterations |" in text
    for part, title in (("sampled", "sampled, 4 each"), ("greedy", "greedy")):
        for key in ("success", "reward"):
            before, after = (told(reports[number][part][key]) for number in (0, 3))
            assert f"| {key}, {title} | {before} | {after} |" in text
    assert "| pass@4 | 0.373 | 0.706 |" in text
    assert f"| `ann` | {told(interval(0.25))} | {told(interval(0.206))} |" in text
    assert "| `ann` | 0.013 | 33.250 | 32.500 |" in text or "| `ann` | 0.012 | 33.250 | 32.500 |" in text
    assert "0.750" not in text  # the evaluation after the checkpoint is not the checkpoint's
    assert "16 held-out tasks" in text


def test_training_is_told_up_to_the_checkpoint(subject):
    text = team_card(subject, "me/duo")
    for line in (
        "| iterations | 3 of 4 |",
        "| episodes | 18 |",
        "| sampled tokens | about 180 |",  # 3 iterations, 6 episodes, 1 x 4 + 2 x 3 tokens
        "| seed | 7 |",
        "| weights | LoRA: rank 4, alpha 8, targets all-linear |",
    ):
        assert line in text


def test_the_team_is_drawn_as_text(subject):
    text = team_card(subject, "me/duo")
    drawing = text.split("```text\n")[1].split("```")[0]
    assert "ann" in drawing
    assert "reads: ann" in drawing
    assert "\x1b" not in drawing
    assert "- `bob` does not see the task; trained, adapter `bob`" in text


def test_without_evaluations_it_says_so(subject):
    for file in (subject.run.path / "evaluations").iterdir():
        file.unlink()
    assert "were not evaluated" in team_card(subject, "me/duo")


def test_the_weights_of_an_iteration_that_was_not_evaluated_are_not_praised(subject):
    (subject.run.path / "evaluations" / "000003.json").rename(subject.run.path / "evaluations" / "000002.json")
    text = team_card(subject, "me/duo")
    assert "| after 2 iterations |" in text
    assert "those after 3 iterations, which were not evaluated" in text


def test_serving_names_adapters_and_a_rank_beyond_the_default():
    assert "vllm serve BASE --enable-lora --lora-modules ann=. bob=x\n" in about_serving(
        "BASE", {"ann": ".", "bob": "x"}, 16
    )
    assert "--max-lora-rank 32 " in about_serving("BASE", {"ann": "."}, 32)
    assert "vllm serve .\n" in about_serving(".", {}, 0)
    assert "not been run by us on a GPU" in about_serving(".", {}, 0)


def test_a_card_for_a_model_on_the_hub_shows_peft_and_vllm(tmp_path):
    subject = on_model("Qwen/Qwen2.5-3B-Instruct")
    run = RunDirectory.create(parse_config(subject.config.model_dump(mode="json")), tmp_path / "run")
    text = team_card(Subject(run, subject.config, subject.game, 20), "me/duo")
    assert 'PeftModel.from_pretrained(base, "me/duo", subfolder="checkpoints/000020/adapters/ann")' in text
    assert "hf download me/duo --local-dir team\n" in text
    assert "ann=./team/checkpoints/000020/adapters/ann bob=./team/checkpoints/000020/adapters/bob" in text


def test_what_was_measured_before_training_alone_says_nothing_of_the_weights(subject):
    for number in (3, 4):
        (subject.run.path / "evaluations" / f"{number:06d}.json").unlink()
    subject.run.write_evaluation(0, AFTER)
    text = team_card(subject, "me/duo")
    assert "|  | before training |\n" in text
    assert "those after 3 iterations, which were not evaluated" in text
    assert "influence of" not in text
