-- From which checkpoint does each one descend, and on which tasks of which split was that trained?
SELECT a.run, a.checkpoint_id, c.stage, c.domain, c.effort, a.ancestor_id, a.generation,
    count(DISTINCT t.task_id) AS tasks, list(DISTINCT t.split ORDER BY t.split) AS splits
FROM ancestry a
JOIN checkpoints c ON c.run = a.run AND c.checkpoint_id = a.checkpoint_id
JOIN checkpoint_tasks ct ON ct.run = a.run AND ct.checkpoint_id = a.ancestor_id
JOIN tasks t ON t.run = a.run AND t.task_id = ct.task_id
GROUP BY ALL
ORDER BY a.run, c.stage, c.domain, c.effort, a.generation;
