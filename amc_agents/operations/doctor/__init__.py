"""Check a configuration, its critic and its model servers: `amc doctor`."""

from amc_agents.operations.doctor.checks import Check
from amc_agents.operations.doctor.patient import Patient, examine

__all__ = ["Check", "Patient", "examine"]
