"""Client work: what a client computes from what it is sent."""
