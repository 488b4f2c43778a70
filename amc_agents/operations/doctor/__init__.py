"""Check a configuration, its critic and its model servers: `amc doctor`."""

from amc_agents.operations.doctor.check import Check
from amc_agents.operations.doctor.examine import Patient, examine

__all__ = ["Check", "Patient", "examine"]
