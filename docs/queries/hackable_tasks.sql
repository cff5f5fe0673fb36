-- Which exploit classes solve tasks without doing them, and was any such task published (must be 0)?
SELECT run, exploit_class, sum(probed_tasks) AS probed_tasks, sum(hacked_tasks) AS hacked_tasks,
    round(100 * sum(hacked_tasks) / sum(probed_tasks), 2) AS hacked_percent,
    sum(published_hackable) AS published_hackable
FROM hackable_tasks
GROUP BY run, exploit_class
ORDER BY hacked_tasks DESC, exploit_class;
