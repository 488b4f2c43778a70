"""Self-contained HTML pages: markup that escapes every text, the page around it, and the page of one run.

A page loads nothing from a network, works without a server, and can be printed. `Run` shows itself with the page of one
run; the pages of folders are in `amc_agents.operations.report`.
"""
