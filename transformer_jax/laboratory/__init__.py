"""Experiments that answer "is A better than B?": paired runs, their differences, and verdicts."""
