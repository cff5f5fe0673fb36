"""A gateway for agents' own programs: the OpenAI and Anthropic wires in front, a policy behind, exact tokens on record."""
