"""Check a configuration, its critic and its model servers: `amc doctor`."""

from amc_agents.operations.doctor.patient import Patient, examine
from amc_agents.operations.doctor.server_checks import Check

__all__ = ["Check", "Patient", "examine"]
