"""Directed graphs as a dict of neighbours."""


def reachable(graph, start):
    """Return all nodes that can be reached, the start included."""
    seen = {start}
    waiting = [start]
    while waiting:
        for node in graph.get(waiting.pop(), ()):
            if node not in seen:
                seen.add(node)
                waiting.append(node)
    return seen


def distance(graph, start, goal):
    """Count the edges of a shortest path; -1 if there is none."""
    level = {start}
    seen = set(level)
    steps = 0
    while level:
        if goal in level:
            return steps
        level = {node for known in level for node in graph.get(known, ()) if node not in seen}
        seen |= level
        steps += 1
    return -1


def ordered(graph):
    """Sort the nodes so that each comes before its neighbours; None if there is a cycle."""
    incoming = {node: 0 for node in graph}
    for node in graph:
        for neighbour in graph[node]:
            incoming[neighbour] += 1
    result = []
    while len(result) < len(graph):
        free = [node for node in sorted(graph) if incoming[node] == 0 and node not in result]
        if not free:
            return None
        result.append(free[0])
        for neighbour in graph[free[0]]:
            incoming[neighbour] -= 1
    return result


def degrees(edges):
    """Count the edges at each node."""
    counts = {}
    for edge in edges:
        for node in edge:
            counts[node] = counts.get(node, 0) + 1
    return counts
