-- Which episodes of the student went worst? Read them.
SELECT run, domain, effort, rank, task_id, level, stop, malformed_calls, output_tokens, evidence, transcript
FROM worst_traces
WHERE actor = 'student' AND rank <= 2
ORDER BY run, domain, effort, rank;
