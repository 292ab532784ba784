-- Names a tenant's jobs whose ends are to be told, and puts each off.
-- KEYS: tenants with such ends, the tenant's. ARGV: tenant, now, when each is to be told again, the most.
-- a write that takes no memory comes first: after it a full server lets a script finish
redis.call('ZREM', KEYS[2], '')
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[2], 'LIMIT', 0, ARGV[4])
local ms = redis.call('PTTL', KEYS[2])
for _, id in ipairs(due) do tell_at(KEYS[1], KEYS[2], ARGV[1], id, ARGV[3], ms) end
-- the tenant's may have gone by themselves
if not due[1] then tell_at(KEYS[1], KEYS[2], ARGV[1], '', nil) end
return due
