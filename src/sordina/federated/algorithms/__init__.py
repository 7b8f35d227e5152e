"""Federated algorithms: the server's and the client's half of each in one file; `registry` knows them by name."""

from __future__ import annotations
