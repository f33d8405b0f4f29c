"""Paths on disks and in buckets; files are written whole or not at all."""
