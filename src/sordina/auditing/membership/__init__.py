"""Membership inference: was this record in the training set?"""
