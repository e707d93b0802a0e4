"""The whole YAML schema. An unknown key is an error with a suggestion; every error names the file and the key."""

from marft.config.experiment import Config
from marft.config.file import dump_config, load_config, parse_config
from marft.config.learning import (
    CreditConfig,
    CriticConfig,
    CurriculumConfig,
    EvaluationConfig,
    GuardConfig,
    RolloutConfig,
    RunConfig,
    UpdateConfig,
    VllmConfig,
)
from marft.config.players import (
    AgentConfig,
    DebateConfig,
    EdgeConfig,
    EndpointConfig,
    EnvironmentConfig,
    FunctionConfig,
    GraphConfig,
    LoraConfig,
    ModelConfig,
    OrchestratorConfig,
    SamplingConfig,
    TeamConfig,
)

__all__ = [
    "AgentConfig",
    "Config",
    "CreditConfig",
    "CriticConfig",
    "CurriculumConfig",
    "DebateConfig",
    "EdgeConfig",
    "EndpointConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "FunctionConfig",
    "GraphConfig",
    "GuardConfig",
    "LoraConfig",
    "ModelConfig",
    "OrchestratorConfig",
    "RolloutConfig",
    "RunConfig",
    "SamplingConfig",
    "TeamConfig",
    "UpdateConfig",
    "VllmConfig",
    "dump_config",
    "load_config",
    "parse_config",
]
