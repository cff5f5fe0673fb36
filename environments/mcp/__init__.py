"""Model Context Protocol: environments as servers, calls through client sessions, outside servers as tools."""
