-- Which branches and kinds of task give the most published tasks for their candidates?
SELECT run, branch, domain, kind, sum(candidates) AS candidates, sum(published) AS published,
    round(sum(published) / sum(candidates), 3) AS yield
FROM task_yield
GROUP BY run, branch, domain, kind
HAVING sum(candidates) >= 3
ORDER BY yield DESC, candidates DESC, branch, kind
LIMIT 20;
