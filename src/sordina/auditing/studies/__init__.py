"""Whole experiments on membership, language models and reconstruction, each one function with plain parameters."""
