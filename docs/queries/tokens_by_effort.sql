-- Do episodes get longer with effort (low < high < max), for experts and student?
SELECT run, domain, CASE WHEN policy = 'student' THEN 'student' ELSE 'experts' END AS who,
    round(any_value(mean_tokens) FILTER (effort = 'low'), 1) AS low,
    round(any_value(mean_tokens) FILTER (effort = 'high'), 1) AS high,
    round(any_value(mean_tokens) FILTER (effort = 'max'), 1) AS "max"
FROM tokens_by_effort
WHERE policy <> 'cold_start'
GROUP BY ALL
ORDER BY run, domain, who;
