"""Runs: what a config resolves to, and how a run is started, locked, resumed and opened."""
