"""Jobs on a Kubernetes cluster."""
