-- Hands the end of a job out, if it is still to be told and the job is as it was read: counts it, and gives it a token. Returns how often it
-- was handed out; 0 where it was not. That of a job that is not there is not told any more.
-- KEYS: job, tenants with such ends, the tenant's. ARGV: id, tenant, revision (empty: there is no job), token.
local job = redis.call('HMGET', KEYS[1], 'r', 'u')
if (job[1] or '') ~= ARGV[3] then return 0 end
-- a write that takes no memory comes first: after it a full server lets a script finish
redis.call('ZREM', KEYS[3], '')
if not job[1] then tell_at(KEYS[2], KEYS[3], ARGV[2], ARGV[1], nil) end
if not redis.call('ZSCORE', KEYS[3], ARGV[1]) then return 0 end
-- a command may be sent again when its answer was lost
if job[2] ~= ARGV[4] then
  redis.call('HSET', KEYS[1], 'u', ARGV[4])
  redis.call('HINCRBY', KEYS[1], 'w', 1)
end
return tonumber(redis.call('HGET', KEYS[1], 'w'))
