"""The executor `ray` of `amc bench`, `tune`, `collect` and `score`: the work of a command on a Ray cluster."""

from amc_agents_ray.work import cluster, run_on_ray

run = run_on_ray
__all__ = ["cluster", "run"]
