-- Which harness modules did episodes meet, how often, and did they pass in them?
SELECT module, option, sum(episodes) AS episodes, round(sum(episodes * pass_rate) / sum(episodes), 3) AS pass_rate
FROM harness_usage
GROUP BY module, option
ORDER BY module, episodes DESC;
