"""One objective a file: rows, loss, evaluations. task.py has the contract."""
