"""Nodes on this machine, as isolated as it allows: the cluster `local`."""
