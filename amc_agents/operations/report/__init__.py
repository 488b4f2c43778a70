"""Pages of result folders (`amc report`): a run, a comparison, a tuning, a dataset.

Every figure comes from the functions that compute the tables of the command line. The page itself, and the page of one
run, are in `amc_agents.operations.page`.
"""
