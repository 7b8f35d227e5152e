import pytest

from sordina.estimators import forget_unbooked


@pytest.fixture(autouse=True)
def _fresh_count():
    forget_unbooked()
    yield
    forget_unbooked()
