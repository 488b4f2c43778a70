"""Is everything there that a configuration names, and does it answer as it must? What `amc doctor` asks."""

from amc_agents.doctor.check import Check
from amc_agents.doctor.examine import Patient, examine

__all__ = ["Check", "Patient", "examine"]
