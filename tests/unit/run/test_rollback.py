"""What the guard does: it says things once, goes back bit for bit, and keeps what it may need."""

import json

import pytest
import torch

from builders import World, same, snapshot, team_of
from marft.config import GuardConfig
from marft.learn.clock import Clock
from marft.learn.guard import Diverged
from marft.learn.train import Training, iterate, save_if_due
from marft.run import checkpoint
from marft.run.directory import RunDirectory
from marft.run.metrics import MetricsWriter
from marft.run.progress import Silent
from marft.run.rollback import Guard, finite_gradients, recorded, usable
from marft.run.state import save_training
from marft.types import MarftError

FINE, WILD = {"update": {"ann": {"kl": 0.01}}}, {"update": {"ann": {"kl": 2.0}}}


class Told(Silent):
    """A watcher that remembers what a person was told."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def row(success=0.5, **more):
    return {"success": success, "reward": success, "episodes": 64, "failed": 0, **more}


class Run:
    """A team that learns under a guard, with rows as the test wants them."""

    def __init__(self, path, action="rollback", normalise="batch", agents=("ann",), **guard):
        world = World(pay=lambda said: float(said[-1]["ann"].count("a")))
        self.team = team_of(
            *agents, world=world, critic={"warmup": 0}, guard={"action": action, **guard},
            credit={"normalise": normalise}, run={"trackers": [], "keep_last": 1},
        )  # fmt: skip
        self.training = Training.of(self.team)
        self.directory = RunDirectory(path) if path.exists() else RunDirectory.create(self.team.config, path)
        self.watcher = Told()
        self.open()

    def open(self):
        parts = self.team, self.training.optimisers, self.training.memory
        self.guard = Guard(self.directory, *parts, self.watcher)
        self.guard.begin()

    def go(self, iteration, **stats):
        """Really learn, and say `stats` of it; returns the row."""
        iterate(self.training, iteration, Clock(), Silent())
        told = self.guard.look(iteration, row(**stats))
        self.team.load(iteration + 1)
        with MetricsWriter(self.directory, iteration) as writer:
            writer.write(iteration, told)
        save_if_due(self.training, self.directory, iteration, self.guard)
        return told

    @property
    def state(self):
        policy = self.team.backends[0].policy
        found = {(name, key): each for name in policy.adapters for key, each in snapshot(policy, name).items()}
        for name, optimiser in self.training.optimisers.items():
            for number, moments in optimiser.state_dict()["state"].items():
                found |= {(f"optimiser {name}", number, key): each.clone() for key, each in moments.items()}
        return found

    @property
    def rates(self):
        return [group["lr"] for group in self.training.optimisers["critic"].param_groups]

    @property
    def saved(self):
        return checkpoint.iterations(self.directory)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run")


def test_off_looks_at_nothing(tmp_path):
    run = Run(tmp_path / "run", "off")
    assert run.go(0, **WILD) == row(**WILD)
    assert (run.watcher.notes, run.saved) == ([], [1])


def test_a_warning_is_given_once_while_it_lasts(tmp_path):
    run = Run(tmp_path / "run", "warn")
    assert run.go(0, **FINE)["health"] == {"alarms": 0}
    assert run.go(1, **WILD)["health"] == {"alarms": 1, "kl": {"ann": 2.0}}
    assert len(run.watcher.notes) == 1
    assert run.watcher.notes[0].startswith("iter 2: agent 'ann': KL of 2 nats per token")
    run.go(2, **WILD)
    run.open()  # a resumed run remembers what was said
    run.go(3, **WILD)
    assert len(run.watcher.notes) == 1
    run.go(4, **FINE)
    run.go(5, **WILD)
    assert len(run.watcher.notes) == 2
    assert run.saved == [6]  # the newest: nothing is kept for going back


def test_going_back_restores_weights_and_optimisers_and_takes_smaller_steps(run):
    untrained, rates = run.state, run.rates
    run.go(0, **FINE)
    good = run.state
    assert not same(good, untrained)
    told = run.go(1, **WILD)
    assert (told["rollback_to"], told["lr_scale"]) == (1, 0.5)
    assert same(run.state, good)
    assert run.rates == [rate * 0.5 for rate in rates]
    assert run.watcher.notes[-1] == "iter 2: back to checkpoint 000001, with learning rates times 0.5 (rollback 1 of 3)"
    optimiser = run.training.optimisers["ann"]
    run.go(2, **FINE)
    assert optimiser.param_groups[0]["lr"] == run.team.config.update.lr * 0.5
    assert not same(run.state, good)
    run.go(3, **WILD)
    assert run.rates == [rate * 0.25 for rate in rates]
    assert run.training.memory.rollbacks == 2


def test_the_state_gone_back_to_is_saved_under_the_next_number_at_once(tmp_path):
    run = Run(tmp_path / "run")
    run.go(0, **FINE)
    good = run.state
    run.go(1, **WILD)
    assert run.saved[-1] == 2
    assert json.loads((checkpoint.latest(run.directory) / "state.json").read_text())["iteration"] == 2
    other = Run(tmp_path / "run")
    assert not same(other.state, good)
    from marft.run.state import load_training

    assert load_training(other.directory, other.team, other.training.optimisers, other.training.memory) == 2
    assert same(other.state, good)
    assert (other.training.memory.lr_scale, other.training.memory.rollbacks, other.rates) == (0.5, 1, run.rates)


def test_the_first_step_can_be_taken_back(run):
    untrained = run.state
    assert run.saved == [0]
    assert run.go(0, **WILD)["rollback_to"] == 0
    policy = run.team.backends[0].policy
    assert same(snapshot(policy, "ann"), {key: each for (name, key), each in untrained.items() if name == "ann"})
    assert checkpoint.best(run.directory) is None  # nothing was played with what was gone back to


def test_a_ruined_checkpoint_is_passed_over(run):
    run.go(0, **FINE)
    good = run.state
    run.team.critics["critic"].head.weight.data.fill_(float("nan"))
    save_training(run.directory, run.team, run.training.optimisers, 2, run.training.memory, keep=(1,))
    run.guard._rows.append({"iteration": 1, **row()})
    told = run.go(2, diverged={"ann": "ann: the gradient is not finite"})
    assert told["rollback_to"] == 1
    assert same({key: each for key, each in run.state.items() if key[0] in ("ann", "critic")},
                {key: each for key, each in good.items() if key[0] in ("ann", "critic")})  # fmt: skip
    assert bool(run.team.critics["critic"].head.weight.isfinite().all())


def test_a_slow_decline_goes_back_to_where_all_was_well(tmp_path):
    run = Run(tmp_path / "run", window=2)
    for iteration in range(4):
        run.go(iteration, success=0.9)
    for iteration, success in ((4, 0.8), (5, 0.5)):
        assert "rollback_to" not in run.go(iteration, success=success)
    assert 3 in run.saved  # keep_last is 1, yet the last at which the team was at its best is there
    assert run.go(6, success=0.0)["health"]["collapse"] == {"team": 0.25}
    assert run.watcher.notes[-1].startswith("iter 7: back to checkpoint 000003")


def entropies(*values):
    return [{"entropy": {"ann": each}} for each in values]


def test_an_entropy_that_falls_slowly_goes_back_to_where_it_was_well_twice(run):
    # a tenth of the first, the square root of the limit, lies between 0.6^4 = 0.13 and 0.6^5 = 0.08
    for iteration, stats in enumerate(entropies(*(0.6**power for power in range(10)))):
        assert "rollback_to" not in run.go(iteration, **stats)
    assert run.saved == [4, 9, 10]  # the last well inside, the last good, and the newest
    told = run.go(10, **entropies(0.6**10)[0])
    assert (told["health"]["entropy_low"]["ann"], told["rollback_to"]) == (0.6**10, 4)
    good = run.state  # now checkpoint 11; then it falls again, too fast for the smaller step
    for iteration, stats in enumerate(entropies(0.6**4, 0.05, 0.02), start=11):
        assert "rollback_to" not in run.go(iteration, **stats)
    assert not same(run.state, good)
    assert run.go(14, **entropies(0.005)[0])["rollback_to"] == 11
    assert same(run.state, good)


def test_a_way_from_the_base_model_that_grows_slowly_leads_back_to_half_of_it(run):
    for iteration in range(10):
        assert "rollback_to" not in run.go(iteration, reference_kl=0.5 * (iteration + 1))  # 5.0 is the limit
    told = run.go(10, reference_kl=5.5)
    assert (told["health"]["reference_kl"]["team"], told["rollback_to"]) == (5.5, 4)  # where it was 2.5
    assert run.go(11, reference_kl=5.5)["rollback_to"] == 11  # checkpoint 11 is the state of 4


def test_a_critic_that_ran_away_is_taken_back_with_a_smaller_step(tmp_path):
    run = Run(tmp_path / "run", agents=("ann", "bob"))
    run.go(0)
    good, rates = run.state, run.rates
    head = run.team.critics["critic"].head.weight
    head.data = torch.randn(head.shape, generator=torch.Generator().manual_seed(0)) * 1e4  # what a step too far leaves
    save_training(run.directory, run.team, run.training.optimisers, 2, run.training.memory, keep=(1,))
    run.guard._rows.append({"iteration": 1, **row()})
    _, stats = iterate(run.training, 2, Clock(), Silent())
    stats["update"] = {}  # what becomes of agents under such values is another matter
    told = run.guard.look(2, stats)
    assert list(told["health"]) == ["alarms", "critic"]
    assert told["health"]["critic"]["critic"] == stats["critic"]["explained_variance"] < -10.0
    assert told["rollback_to"] == 1  # checkpoint 2 said what iteration 2 shows to be bad
    assert same(run.state, good)
    assert run.rates == [rate * 0.5 for rate in rates]


def test_a_running_mean_is_that_of_the_checkpoint_gone_back_to(run):
    memory = run.training.memory
    memory.running = {"ann": 0.25}
    run.go(0, **FINE)
    memory.running = {"ann": float("nan")}
    assert run.go(1, **WILD)["rollback_to"] == 1
    assert memory.running == {"ann": 0.25}


def test_a_checkpoint_with_a_running_mean_that_is_not_finite_is_passed_over(run):
    memory = run.training.memory
    memory.running = {"ann": 0.25}
    run.go(0, **FINE)
    memory.running = {"ann": float("nan")}
    run.go(1, **FINE)
    assert 1 in run.saved
    assert run.go(2, **WILD)["rollback_to"] == 1
    assert memory.running == {"ann": 0.25}


def test_after_the_last_rollback_the_run_ends_with_a_good_state(tmp_path):
    run = Run(tmp_path / "run", rollbacks=1)
    run.go(0, **FINE)
    run.go(1, **WILD)
    run.guard.end_if_hopeless()
    good = run.state
    run.go(2, **WILD)
    with pytest.raises(MarftError, match=r"iteration 3: agent 'ann': KL of 2 .*gone back 1 times already .*000003, in"):
        run.guard.end_if_hopeless()
    assert (run.saved[-1], run.training.memory.rollbacks, run.training.memory.lr_scale) == (3, 1, 0.5)
    assert same(run.state, good)


def test_where_one_may_go_back_to():
    # saved every 2; 3 is there because somebody stopped the run; the steps to 5 and 6 were given up in iteration 6
    rows = [{"iteration": number} for number in range(9)]
    assert usable([0, 2, 3, 4, 6], rows, 2) == [0, 2, 4, 6]
    rows[6]["rollback_to"] = 4
    assert usable({8, 7, 6, 5, 4, 3, 2}, rows, 2) == [2, 4, 7, 8]


# ---- gradients


def parameter(gradient):
    found = torch.nn.Parameter(torch.zeros(2))
    found.grad = torch.full((2,), gradient)
    return found


@pytest.mark.parametrize("gradient", [float("nan"), float("inf")])
def test_torchs_complaint_becomes_one_sentence_that_names_the_agent(gradient):
    with pytest.raises(Diverged, match=r"^ann: the gradient is not finite; lower update\.lr"), finite_gradients("ann"):
        torch.nn.utils.clip_grad_norm_([parameter(gradient)], 1.0, error_if_nonfinite=True)


def test_other_errors_stay_what_they_are():
    with finite_gradients("ann"):
        torch.nn.utils.clip_grad_norm_([parameter(1.0)], 1.0, error_if_nonfinite=True)
    with pytest.raises(RuntimeError, match="out of memory"), finite_gradients("ann"):
        raise RuntimeError("out of memory")


def test_a_divergence_ends_the_run_unless_the_guard_may_go_back():
    stats = {}
    for action in ("off", "warn"):
        hinted = pytest.raises(Diverged, match=r"^ann: .* and critic\.lr, or set guard\.action: rollback$")
        with hinted, recorded(stats, GuardConfig(action=action)):
            raise Diverged("ann")
    assert stats == {}
    with recorded(stats, GuardConfig(action="rollback")):
        raise Diverged("ann")
    assert stats["diverged"] == {"ann": "ann: the gradient is not finite; lower update.lr and critic.lr"}


def test_an_update_whose_gradient_is_not_finite_is_taken_back(tmp_path):
    run = Run(tmp_path / "run", normalise="none")
    run.go(0)
    good = run.state
    run.team.critics["critic"].head.weight.data.fill_(float("nan"))
    _, stats = iterate(run.training, 1, Clock(), Silent())
    assert set(stats["diverged"]) == {"ann", "critic"}  # its values spoil the advantages, and so the agent's gradient
    assert run.guard.look(1, stats)["rollback_to"] == 1
    assert same(run.state, good)
    assert bool(run.team.critics["critic"].head.weight.isfinite().all())
