"""Sordina for other libraries: `huggingface` has a trainer for models of `transformers` and adapters of `peft`.

Install with ``pip install 'sordina[llm]'``; nothing of it is imported before it is used.
"""

from sordina._renamed import lazily

__all__ = ["huggingface"]
__getattr__ = lazily("sordina.integrations", {"huggingface": "sordina.integrations.huggingface"})


def __dir__() -> list[str]:
    return sorted(__all__)
