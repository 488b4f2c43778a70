"""Waiting lines of jobs, as (priority, arrival, name)."""


def next_job(jobs):
    """Return the job of the highest priority; the earliest of equals."""
    return max(jobs, key=lambda job: (job[0], -job[1])) if jobs else None


def schedule(durations, n_workers):
    """Give each job to the worker that is free first, and return when each job ends."""
    free = [0] * n_workers
    ends = []
    for duration in durations:
        worker = free.index(min(free))
        free[worker] += duration
        ends.append(free[worker])
    return ends


def expired(jobs, now, limit):
    """Return the names of jobs that have waited for longer than `limit`."""
    return [name for _, arrival, name in jobs if now - arrival > limit]


def admitted(times, per_window, window):
    """Return the times of requests that a rate limit lets through."""
    passed = []
    for time in times:
        recent = [earlier for earlier in passed if time - earlier < window]
        if len(recent) < per_window:
            passed.append(time)
    return passed
