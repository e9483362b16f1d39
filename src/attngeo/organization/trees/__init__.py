"""Partition trees, their folders and their Haar rotations."""
