"""Dry runs, rooflines and costs, before there is a device."""
