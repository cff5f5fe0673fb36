-- Which nodes never gave a published task, and why not?
SELECT run, node_id, node, kind, candidates, main_reject_reason
FROM task_yield
WHERE published = 0
ORDER BY candidates DESC, node_id
LIMIT 20;
