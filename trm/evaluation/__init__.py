"""Evaluation of trained models: inference policies, scores, votes, baselines."""
