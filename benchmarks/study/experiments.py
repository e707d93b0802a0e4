"""The experiments, in the order in which they matter.

Every run trains a team of the small model on word problems, of which only the first agent reads the question, unless a
condition says otherwise. What the conditions do not name is in `base.BASE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.nano.problems import KINDS, LIMITS
from benchmarks.study.base import BASE, DUO, EQUAL_TOKENS, SIZES, TRIO, in_each_size, plain, single
from benchmarks.study.conditions import Condition, Contrast, Experiment

LEARNERS = Experiment(
    "learners",
    "Which learner trains teams best, and does the difference grow with the team?",
    BASE,
    tuple(
        Condition(
            name, single(group) if name == "single" else {"team.size": size, "learner": name}, group
        )
        for group, size in SIZES.items()
        for name in ("marft-a", "marft-t", "ippo", "mappo", "grpo", "single")
    ),
    baseline="marft-a",
    contrasts=tuple(
        Contrast(f"lead of {name} over ippo: {more} against duo",
                 (f"{more}/{name}", "duo/ippo"), (f"{more}/ippo", f"duo/{name}"))
        for name in ("marft-a", "marft-t") for more in ("trio", "quad")
    ),
    note=EQUAL_TOKENS,
)  # fmt: skip

ROLES = Experiment(
    "roles",
    "Do prescribed roles help, or do anonymous agents find theirs?",
    BASE,
    in_each_size(roles={}, anonymous={"team.anonymous": True}),
    baseline="roles",
)

BUDGET = Experiment(
    "budget",
    "What do the same tokens buy: a larger team, a trained agent alone, or the majority of several samples?",
    BASE,
    plain(
        untrained_single={"team.size": 1, "iterations": 0, "evaluation.samples": 16},
        single={**single("quad"), "evaluation.samples": 16},
        duo={"team.size": 2},
        trio={"team.size": 3},
        quad={"team.size": 4},
    ),
    baseline="single",
    figure="budget",
    note=f"{EQUAL_TOKENS} Here it samples as many as the quad.",
)

NORMALISATION = Experiment(
    "normalisation",
    "By what should an action's log-ratio be divided?",
    DUO,
    plain(sum={"update.action_normalisation": "sum"}, token={"update.action_normalisation": "token"},
          word={"update.action_normalisation": "word"}),
    baseline="sum",
)  # fmt: skip

OWN_TEAM = {"credit.chain": "agent", "credit.allocation": "own_team"}
ALLOCATION = Experiment(
    "allocation",
    "On whose actions should the reward stand, where the team is paid as one, and where each part of the work is paid?",
    TRIO,
    tuple(
        Condition(name, {**changes, **({} if pay == "team" else {"environment.pay": "each"})},
                  "paid as a team" if pay == "team" else "each part paid")
        for pay in ("team", "each")
        for name, changes in {
            "per_action": {"credit.allocation": "per_action"},
            "team_last": {"credit.allocation": "team_last"},
            "equal": {"credit.allocation": "equal"},
            "step_discounted": {"credit.allocation": "step_discounted"},
            "own_team, a chain per agent": OWN_TEAM,
        }.items()
        if (pay, name) != ("team", "team_last")  # the same as per_action: one reward, on the last action
        and (pay == "team" or name in ("per_action", "team_last", "own_team, a chain per agent"))
    ),
    baseline="per_action",
)  # fmt: skip

SCHEDULE = Experiment(
    "schedule",
    "In which order should agents be updated, and does HAPPO's factor help?",
    TRIO,
    plain(
        declared={},
        declared_with_carry={"update.carry": "happo"},
        reverse={"update.order": "reverse"},
        reverse_with_carry={"update.order": "reverse", "update.carry": "happo"},
        alternate={"update.schedule": "alternate"},
        simultaneous={"update.schedule": "simultaneous"},
    ),
    baseline="declared",
    note="`alternate` improves one agent in an iteration, the others all three.",
)

GAMMA_TOKEN = Experiment(
    "gamma_token",
    "Should tokens within a reply be discounted?",
    {**DUO, "learner": "marft-t"},
    plain(**{
        "1": {"credit.gamma_token": 1.0},
        "0.99": {"credit.gamma_token": 0.99},
        "all 0.99, lambdas 0.95": {
            "credit.gamma": 0.99, "credit.gamma_agent": 0.99, "credit.gamma_token": 0.99, "credit.lam": 0.95,
            "credit.lam_token": 0.95,
        },
    }),
    baseline="1",
)  # fmt: skip

WARMUP = Experiment(
    "warmup",
    "Should the critic learn before the agents do?",
    DUO,
    plain(none={"critic.warmup": 0}, one={"critic.warmup": 1}, five={"critic.warmup": 5}),
    baseline="one",
)

SHARING = Experiment(
    "sharing",
    "One adapter for each agent, one for all, or groups?",
    TRIO,
    plain(
        one_each={},
        one_for_all={"team.adapters": ["all"] * 3},
        the_first_and_the_others={"team.adapters": ["first", "others", "others"]},
    ),
    baseline="one each",
)

EDGES = {
    "chain": {},
    "neighbours only": {"team.edges": [[0, 1], [1, 2]]},
    "first unheard": {"team.edges": [[1, 2]]},
    "parallel": {"team.edges": []},
}
DEPENDENCY = Experiment(
    "dependency",
    "What is lost when the dependency function D withholds messages?",
    TRIO,
    tuple(
        Condition(name, {**changes, "team.hidden": hidden}, "question hidden" if hidden else "all read the question")
        for hidden in (True, False)
        for name, changes in EDGES.items()
        if hidden or name in ("chain", "parallel")
    ),
    baseline="chain",
)

IDENTICAL = Experiment(
    "identical",
    "What does one more identical agent add?",
    BASE,
    plain(**{
        str(size): {"team.size": size, "team.anonymous": True, "team.hidden": False} for size in (1, 2, 3)
    }),
    baseline="1",
    note="All agents read the question, have no role and the same longest reply; a larger team spends more tokens.",
    contrasts=(
        Contrast("the third agent", ("3",), ("2",)),
        Contrast("the second agent adds more than the third", ("2", "2"), ("1", "3")),
    ),
)  # fmt: skip

RETENTION = Experiment(
    "retention",
    "How far does training move the language, and what does holding it cost?",
    {**DUO, "evaluation.every": 10},
    plain(**{
        "free": {},
        "KL 0.1 in the loss": {"update.kl_reference": 0.1},
    }),
    baseline="free",
    figure="retention",
)  # fmt: skip

LAMBDA = Experiment(
    "lambda",
    "How much of what follows should the critic stand for? At 1 an agent is told how the episode ended, at 0 what the "
    "critic thought once it had spoken.",
    TRIO,
    plain(**{f"{lam:g}": {"credit.lam": lam} for lam in (1.0, 0.95, 0.5, 0.0)}),
    baseline="0.95",
)

STABILITY = Experiment(
    "stability",
    "What do more epochs, older episodes, chosen tasks and large steps do?",
    DUO,
    plain(**{
        "plain": {},
        "4 epochs": {"update.epochs": 4},
        "4 epochs, kl_stop": {"update.epochs": 4, "update.kl_stop": 0.05},
        "staleness 1": {"rollout.staleness": 1},
        "reuse 1": {"rollout.reuse": 1},
        "ten times the step": {"update.lr": 10 * BASE["update.lr"]},
        "ten times the step, guard": {
            "update.lr": 10 * BASE["update.lr"], "guard.action": "rollback", "guard.rollbacks": 20, "run.save_every": 1,
        },
    }),
    baseline="plain",
)  # fmt: skip

CHOOSING = Experiment(
    "choosing",
    "Should tasks without signal be replaced, and tasks be chosen by success rate, where they differ in difficulty?",
    {**DUO, "environment.kinds": list(KINDS), "environment.levels": list(LIMITS)},
    plain(**{
        "as they come": {},
        "resample": {"rollout.resample": 2},
        "curriculum": {"rollout.curriculum": {}},
    }),
    baseline="as they come",
    note="All kinds and levels of problems. With a curriculum and with resampling, training plays other tasks than "
    "without: only held-out success (after) compares them, and resampling costs tokens, which are in the table.",
)  # fmt: skip

CRITIC = Experiment(
    "critic",
    "Would a critic that is fitted for longer help?",
    TRIO,
    plain(**{
        "2 epochs": {},
        "8 epochs": {"critic.epochs": 8},
        "8 epochs, lambda 0.5": {"critic.epochs": 8, "credit.lam": 0.5},
        "each value head undivided": {"critic.head_lr": 256 * 0.01},
    }),
    baseline="2 epochs",
    note="`each value head undivided` gives the head the step it had before its sum was divided by the width of the "
    "model (a rate of 0.01 then).",
)  # fmt: skip

RATES = Experiment(
    "rates",
    "Does the order of the learners depend on the learning rate?",
    TRIO,
    tuple(
        Condition(name, {**(single("trio") if name == "single" else {"learner": name}), "update.lr": lr}, f"lr {lr:g}")
        for lr in (1e-3, 2e-3, 4e-3)
        for name in ("marft-a", "ippo")
    ),
    baseline="marft-a",
)

GROUPS = Experiment(
    "groups",
    "Of the learners without a critic, which is best?",
    TRIO,
    plain(**{name: {"learner": name} for name in ("grpo", "rloo", "gspo", "dapo")}),
    baseline="grpo",
)

CONFIRM_BASE: Mapping[str, Any] = {
    "model.name": "smollm2-135m-instruct",
    "model.dtype": "native",
    "iterations": 10,
    "learner": "marft-a",
    "environment.name": "reasoning",
    "environment.dataset": "products",
    "environment.parameters": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "environment.answer": "last_number",
    "environment.reward": "success",
    "environment.heldout_size": 32,
    "rollout.tasks": 8,
    "rollout.samples": 8,
    "rollout.sampling.max_tokens": 10,
    "critic.warmup": 1,
    "update.lr": 3e-4,
    "evaluation.tasks": 32,
    "evaluation.samples": 2,
    "evaluation.influence": False,
    "run.trackers": [],
    "run.save_every": 4,
    "run.keep_last": 1,
    "run.episodes_every": 1000,
}
ARITHMETIC = "You are good at arithmetic."
ASK = "What is the result? Give only the number as your final answer."
PAIR = {
    "team.message": f"{ASK}\n\n{{text}}",
    "team.agents": [
        {"name": "planner", "profile": f"{ARITHMETIC} Give only the calculation and its result."},
        {"name": "solver", "profile": ARITHMETIC, "sees_task": False},
    ],
}
CONFIRM = Experiment(
    "confirm",
    "Does the main result hold for SmolLM2-135M on multiplication?",
    CONFIRM_BASE,
    plain(**{
        "marft-a": PAIR,
        "ippo": {**PAIR, "learner": "ippo"},
        "single": {
            "team.agents": [{"name": "solver", "profile": f"{ARITHMETIC} Give only the calculation and its result."}],
            "rollout.samples": 16,
        },
    }),
    baseline="marft-a",
    slow=True,
    seeds=3,
    seconds=600.0,
)  # fmt: skip

EXPERIMENTS: Mapping[str, Experiment] = {
    each.name: each
    for each in (
        LEARNERS, ROLES, BUDGET, NORMALISATION, ALLOCATION, SCHEDULE, GAMMA_TOKEN, WARMUP, SHARING, DEPENDENCY,
        IDENTICAL, RETENTION, LAMBDA, CRITIC, STABILITY, GROUPS, CHOOSING, RATES, CONFIRM,
    )
}  # fmt: skip

# What `--quick` changes: everything runs, nothing is learnt
QUICK: Mapping[str, Any] = {
    "model.name": "tiny", "iterations": 3, "rollout.tasks": 2, "rollout.samples": 2, "evaluation.tasks": 4,
    "evaluation.samples": 2, "evaluation.every": 2,
}  # fmt: skip
