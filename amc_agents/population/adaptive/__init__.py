"""`n_particles=Adaptive(...)`: is the answer decided, and how many particles are needed? The arithmetic is in `smc`."""
