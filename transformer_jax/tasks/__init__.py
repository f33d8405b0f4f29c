"""One objective a file: rows, loss, evaluations. task.py has the contract, base.py shared code."""
