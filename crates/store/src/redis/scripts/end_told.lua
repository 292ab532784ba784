-- What became of an end that was handed out. Returns whether the job is there, and it was not handed out again.
-- KEYS: job, tenants with such ends, the tenant's. ARGV: id, tenant, token, when it is to be told again (empty: no more), now.
local job = redis.call('HMGET', KEYS[1], 'u', 'b')
if job[1] ~= ARGV[3] or tonumber(job[2]) <= tonumber(ARGV[5]) then return 0 end
-- a write that takes no memory comes first: after it a full server lets a script finish
redis.call('ZREM', KEYS[3], '')
if ARGV[4] == '' then
  tell_at(KEYS[2], KEYS[3], ARGV[2], ARGV[1], nil)
  redis.call('HDEL', KEYS[1], 'u', 'w')
elseif redis.call('ZSCORE', KEYS[3], ARGV[1]) then
  tell_at(KEYS[2], KEYS[3], ARGV[2], ARGV[1], ARGV[4], redis.call('PTTL', KEYS[3]))
end
return 1
