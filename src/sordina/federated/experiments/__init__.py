"""The federated experiments of the founding documents, as plain functions with parameters.

Each returns plain data (and draws figures where it is given a folder); none of them judges its result.
"""
