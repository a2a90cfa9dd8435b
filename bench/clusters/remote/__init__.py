"""Clusters of other machines: one agent a node, whatever engine brings the nodes up (`pools`)."""
