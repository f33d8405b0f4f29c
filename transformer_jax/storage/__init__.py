"""Paths on disks and in buckets, and atomic writes."""
