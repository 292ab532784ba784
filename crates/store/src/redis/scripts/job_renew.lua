-- Prolongs a claim. Returns 0 where it does not hold, 2 where the job was given up, else 1.
-- KEYS: job, stream. ARGV: token, now.
local job = redis.call('HMGET', KEYS[1], 't', 'e', 'c', 'b')
if job[1] ~= ARGV[1] or tonumber(job[4]) <= tonumber(ARGV[2]) then return 0 end
redis.call('XCLAIM', KEYS[2], GROUP, RUNNING, 0, job[2], 'JUSTID')
return job[3] == '1' and 2 or 1
