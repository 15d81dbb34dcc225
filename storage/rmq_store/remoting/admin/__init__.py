"""Questions and orders of administrators to brokers: `mqadmin`'s requests, in calls (DefaultMQAdminExtImpl.java)."""
