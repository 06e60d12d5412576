"""Tests of deploy/: its files read by their own tools, and started with real servers.

A package, so that its modules and conftest.py do not collide with those of tests/python.
"""
