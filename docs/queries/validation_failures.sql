-- Which validation checks fail most, what came instead, and one task to look at?
SELECT run, domain, check_name, expected, observed, failing_tasks, example_task_id, example_detail
FROM validation_failures
ORDER BY failing_tasks DESC, check_name
LIMIT 20;
