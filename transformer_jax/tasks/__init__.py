"""The tasks, one per file. contracts/task.py defines the contract, objectives/ the shared code."""
