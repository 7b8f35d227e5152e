"""Strategies: what the server does with what was released to it."""
