"""Tree search over forkable worlds: Tree of Thoughts, and LATS."""
