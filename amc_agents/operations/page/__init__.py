"""Self-contained HTML pages: markup that escapes every text, the page around it, and the page of one run.

A page loads nothing from a network, works without a server, and can be printed. This room is at the bottom, because
`Run` shows itself with it; the pages of folders are in `amc_agents.operations.report`.
"""
