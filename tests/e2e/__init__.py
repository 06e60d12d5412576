"""End-to-end tests: the Python package and raw streams against real state servers.

A package, so that its modules and conftest.py do not collide with those of tests/python.
"""
