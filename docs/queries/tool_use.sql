-- Which tools do agents call, and where do they call them wrongly?
SELECT stage, domain, tool, calls, round(refused / calls, 3) AS refused_share, episodes
FROM tool_use
ORDER BY refused DESC, calls DESC;
