"""What must hold on a CUDA device; skipped where there is none."""

import pytest
import torch

from builders import config_of, same, snapshot
from marft.learn.clock import Clock
from marft.learn.train import Training, iterate
from marft.run.progress import Silent
from marft.team import build_team

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_iteration_on_the_gpu_moves_every_adapter_and_nothing_else(dtype):
    config = config_of("one", "two", model={"name": "tiny", "dtype": dtype}, critic={"warmup": 0})
    training = Training.of(build_team(config))
    policy = training.team.backends[0].policy
    assert training.team.backends[0].base.device.type == "cuda"  # device: auto
    before = {name: snapshot(policy, name) for name in policy.adapters}
    head = training.team.backends[0].base.head.weight.clone()
    _, stats = iterate(training, 0, Clock(), Silent())
    assert stats["sampler_gap"]["max"] < (1e-3 if dtype == "float32" else 0.5)
    assert not same(before["critic"], snapshot(policy, "critic"))
    assert torch.equal(head, training.team.backends[0].base.head.weight)
    assert all(each.dtype == torch.float32 for each in policy.parameters("one").values())
