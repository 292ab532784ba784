-- Removes a job whose end has come.
-- KEYS: 1 job, 2 stream, 3 later, 4 input, 5 body of the result, 6 ends, 7 jobs, 8 jobs of the tenant, 9 tenants with ends that are
--       to be told, 10 the tenant's.
-- ARGV: 1 id, 2 its member of ends, 3 now, 4 tenant.
local at = redis.call('ZSCORE', KEYS[6], ARGV[2])
-- it lives longer by now
if at and tonumber(at) > tonumber(ARGV[3]) then return 0 end
local entry = redis.call('HGET', KEYS[1], 'e')
if entry and entry ~= '' then dequeue(KEYS[2], KEYS[3], entry) end
redis.call('DEL', KEYS[1], KEYS[4], KEYS[5])
redis.call('ZREM', KEYS[6], ARGV[2])
redis.call('ZREM', KEYS[7], ARGV[1])
redis.call('ZREM', KEYS[8], ARGV[1])
tell_at(KEYS[9], KEYS[10], ARGV[4], ARGV[1], nil)
return 1
