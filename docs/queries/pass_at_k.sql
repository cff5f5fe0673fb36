-- pass@1, pass@2 and pass@4 of each actor on held-out tasks, averaged over tasks
SELECT run, actor, domain, effort, count(*) AS tasks,
    round(avg(pass_at_k(n, c, 1)), 3) AS pass_at_1,
    round(avg(pass_at_k(n, c, 2)), 3) AS pass_at_2,  -- NULL where a task has fewer samples
    round(avg(pass_at_k(n, c, 4)), 3) AS pass_at_4
FROM task_passes
WHERE stage = 'evaluation'
GROUP BY run, actor, domain, effort
ORDER BY run, domain, effort, actor;
