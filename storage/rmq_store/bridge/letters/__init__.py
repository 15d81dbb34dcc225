"""Dead letters of Kafka in our triage, and retries of Kafka consumers in our ladder."""
