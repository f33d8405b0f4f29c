"""Paths on disks and in buckets; files that are written whole or not at all."""
