"""How an agent meets an environment: prompt, tool interface, XTML encoding, and the loop between policy and world."""
