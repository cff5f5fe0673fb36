-- Which training tasks are worth another run: decided both ways, no exploit, all checks in order?
SELECT t.run, t.task_id, t.domain, t.kind, t.level, sum(p.c)::BIGINT AS passes, sum(p.n)::BIGINT AS episodes
FROM tasks t
JOIN task_passes p ON p.run = t.run AND p.task_id = t.task_id
WHERE t.split = 'train'
  AND NOT EXISTS (SELECT 1 FROM probes b WHERE b.run = t.run AND b.task_id = t.task_id AND b.succeeded)
  AND NOT EXISTS (SELECT 1 FROM validations v WHERE v.run = t.run AND v.task_id = t.task_id AND NOT v.ok)
GROUP BY t.run, t.task_id, t.domain, t.kind, t.level
HAVING sum(p.c) BETWEEN 1 AND sum(p.n) - 1
ORDER BY abs(passes / episodes - 0.5), t.task_id
LIMIT 20;
