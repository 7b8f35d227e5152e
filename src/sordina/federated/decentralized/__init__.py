"""Federated learning without a trusted server."""
