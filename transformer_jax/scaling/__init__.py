"""Scaling experiments: families of runs, the laws fitted to them, and predictions.

A family of runs is described by one file. The prediction for a larger model is recorded before
this model is trained, and then compared with its measured loss.
"""
