"""Generation engines behind `environments.protocols.Engine`."""
