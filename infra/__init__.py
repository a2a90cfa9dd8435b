"""Pulumi programs that stand the cluster up."""
