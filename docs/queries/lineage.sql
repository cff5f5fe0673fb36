-- From the student back to the graph: which concepts and documents taught it most?
SELECT l.run, l.checkpoint_id, l.node, l.branch, l.document_id, l.title, l.licence,
    count(DISTINCT l.task_id) AS tasks, sum(l.episodes)::BIGINT AS episodes,
    max(l.exploits_succeeded) AS exploits_succeeded
FROM lineage l
WHERE l.stage = 'mopd'
GROUP BY l.run, l.checkpoint_id, l.node, l.branch, l.document_id, l.title, l.licence
ORDER BY episodes DESC, l.node, l.document_id
LIMIT 20;
