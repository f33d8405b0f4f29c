"""Dry runs, roofline estimates and costs of training runs, without the devices."""
