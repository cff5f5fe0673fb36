-- How much did each of the nine experts gain over the cold start, within its budget?
SELECT run, domain, effort, round(sft_pass, 3) AS before, round(expert_pass, 3) AS after, round(gain, 3) AS gain,
    expert_low > sft_high AS intervals_apart, round(mean_tokens, 1) AS mean_tokens, round(budget, 1) AS budget
FROM expert_gain
ORDER BY run, domain, budget;
