"""Scaling experiments: families of runs, the laws fitted to them, and predictions.

A family is described once. A prediction for a larger model is checked against its run.
"""
