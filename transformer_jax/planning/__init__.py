"""Dry runs, rooflines and costs, without the devices."""
