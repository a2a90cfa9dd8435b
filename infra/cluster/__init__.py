"""What goes on the cluster, the same in every environment: pure functions that return Kubernetes manifests."""
