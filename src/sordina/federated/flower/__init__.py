"""Federations on Flower: engine, the client's half, simulation, deployment, app template."""
