"""Private estimators as scikit-learn has them: constructors store, `fit` spends, learned names end in ``_``."""

from sordina.estimators._base import LittleData, LooseDelta, UnbookedFits, forget_unbooked
from sordina.estimators.boosted import BoostedClassifier, BoostedRegressor
from sordina.estimators.forest import RandomForestClassifier, RandomForestRegressor
from sordina.estimators.gradient import MLPClassifier, MLPRegressor
from sordina.estimators.linear import LinearRegression, Ridge
from sordina.estimators.linear_classifiers import SVC, LinearSVC, LogisticRegression
from sordina.estimators.moments import PCA, GaussianNB, KMeans
from sordina.estimators.table_model import load_estimator, save_estimator

__all__ = [
    "PCA",
    "SVC",
    "BoostedClassifier",
    "BoostedRegressor",
    "GaussianNB",
    "KMeans",
    "LinearRegression",
    "LinearSVC",
    "LittleData",
    "LogisticRegression",
    "LooseDelta",
    "MLPClassifier",
    "MLPRegressor",
    "RandomForestClassifier",
    "RandomForestRegressor",
    "Ridge",
    "UnbookedFits",
    "forget_unbooked",
    "load_estimator",
    "save_estimator",
]
