"""Check a configuration, its critic and its model servers: `amc doctor`."""

from amc_agents.doctor.check import Check
from amc_agents.doctor.examine import Patient, examine

__all__ = ["Check", "Patient", "examine"]
