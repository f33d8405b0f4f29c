"""The tasks, one per file. contracts/task.py defines the contract, objectives/ the shared code.

Tasks on the data of a single family are in the family's folder.
"""
