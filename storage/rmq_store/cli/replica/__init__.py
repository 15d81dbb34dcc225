"""Commands about replicas: follow, promote."""
