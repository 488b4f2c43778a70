"""Points and polygons in the plane."""


def cross(o, a, b):
    """Return twice the signed area of a triangle: positive if it turns left."""
    return (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0])


def area(polygon):
    """Return the area of a polygon without crossings."""
    pairs = zip(polygon, polygon[1:] + polygon[:1])
    return abs(sum(a[0] * b[1] - a[1] * b[0] for a, b in pairs)) / 2


def inside(point, corner, opposite):
    """Return whether a point is in a rectangle, the edges included."""
    return corner[0] <= point[0] <= opposite[0] and corner[1] <= point[1] <= opposite[1]


def hull(points):
    """Return the convex hull, counter-clockwise from the leftmost point."""
    chains = []
    for ordered in (sorted(points), sorted(points, reverse=True)):
        chain = []
        for point in ordered:
            while len(chain) >= 2 and cross(chain[-2], chain[-1], point) <= 0:
                chain.pop()
            chain.append(point)
        chains.append(chain[:-1])
    return chains[0] + chains[1]
