"""Private estimators with the habits of scikit-learn: constructors store, `fit` spends, learned names end in ``_``."""

from sordina.estimators._base import LooseDelta, UnbookedFits, forget_unbooked
from sordina.estimators.boosted import BoostedClassifier, BoostedRegressor
from sordina.estimators.forest import RandomForestClassifier, RandomForestRegressor
from sordina.estimators.gradient import MLPClassifier, MLPRegressor
from sordina.estimators.linear import LinearRegression, Ridge
from sordina.estimators.linear_classifiers import SVC, LinearSVC, LogisticRegression
from sordina.estimators.moments import PCA, GaussianNB, KMeans

__all__ = [
    "PCA",
    "SVC",
    "BoostedClassifier",
    "BoostedRegressor",
    "GaussianNB",
    "KMeans",
    "LinearRegression",
    "LinearSVC",
    "LogisticRegression",
    "LooseDelta",
    "MLPClassifier",
    "MLPRegressor",
    "RandomForestClassifier",
    "RandomForestRegressor",
    "Ridge",
    "UnbookedFits",
    "forget_unbooked",
]
