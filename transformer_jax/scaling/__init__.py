"""Scaling experiments: a family of runs from one description, the laws fitted to what they
measured, predictions checked.
"""
