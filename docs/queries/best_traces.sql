-- Which episodes of the student went best?
SELECT run, domain, effort, rank, task_id, level, output_tokens, tool_calls, transcript
FROM best_traces
WHERE actor = 'student' AND rank = 1
ORDER BY run, domain, effort;
