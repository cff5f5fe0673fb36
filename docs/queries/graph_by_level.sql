-- How is the graph shaped: nodes, atoms and rejected proposals by level?
SELECT n.run, n.level, count(DISTINCT n.node_id) AS nodes, count(DISTINCT n.node_id) FILTER (n.atomic) AS atoms,
    count(DISTINCT n.branch) AS branches, count(DISTINCT (g.node_id, g.name)) AS rejected_proposals
FROM nodes n LEFT JOIN graph_rejects g ON g.run = n.run AND g.node_id = n.node_id
GROUP BY n.run, n.level
ORDER BY n.run, n.level;
