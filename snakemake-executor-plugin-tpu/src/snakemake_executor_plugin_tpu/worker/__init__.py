"""Runs on the workers of the pod. The controller copies this folder to them; standard library only."""
