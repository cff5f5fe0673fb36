-- Do policies that do not do the task stay at or below 0.05 on held-out tasks?
SELECT run, policy, domain, tasks, round(pass_rate, 3) AS pass_rate, pass_rate <= 0.05 AS harmless
FROM trivial_policies
ORDER BY run, pass_rate DESC, policy, domain;
