"""What administrators ask of a cluster's brokers: `mqadmin`'s requests, in calls (DefaultMQAdminExtImpl.java)."""
