-- How does pass@1 within the budget fall with the difficulty level, for the student and the cold start, on held-out tasks?
SELECT run, actor, domain, effort, level, count(*) AS episodes,
    round(avg(CASE WHEN status = 'pass' AND coalesce(within_budget, true) THEN 1 ELSE 0 END), 3) AS pass_rate,
    round(avg(output_tokens), 1) AS mean_tokens
FROM episodes
WHERE stage = 'evaluation' AND actor IN ('student', 'cold_start') AND status <> 'no-verdict'
GROUP BY run, actor, domain, effort, level
ORDER BY run, domain, effort, actor, level;
