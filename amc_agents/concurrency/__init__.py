"""Concurrency: the background event loop, threads, and work that is awaited side by side or done once."""
