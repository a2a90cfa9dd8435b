"""A Kubernetes cluster with a real node on this machine, for tests; see README.md."""
