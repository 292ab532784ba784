-- Writes a job anew, if it is as it was read and, where a claim is needed, that one holds.
-- KEYS: 1 job, 2 stream, 3 later, 4 input, 5 body of a result, 6 ends, 7 jobs, 8 jobs of the tenant, 9 records,
--       10 sums, 11 tenants with ends that are to be told, 12 the tenant's, 13 idempotency key, where there is one.
-- ARGV: 1 revision, 2 number of this commit, 3 value, 4 token of the claim from now on (empty: none), 5 whether it was given up (1 or 0),
--       6 when it is removed if it was given up, 7 what becomes of its place (stay, hold, over, wait, new), 8 until when it waits,
--       9 id, 10 created at, 11 when it is removed, 12 its member of ends, 13 life of what is kept of it in ms, 14 whether the input goes (1 or
--       0), 15 bytes of the result that is there from now on (empty: nothing changes; drop: none is), 16 its name, 17 channel,
--       18 message, 19 whether it waits from now on (1 or 0), 20 when its end is to be told (empty: nothing changes; never: it has none
--       that is), 21 tenant.
local was = redis.call('HMGET', KEYS[1], 'r', 'd', 'e')
-- a command may be sent again when its answer was lost
if was[2] == ARGV[2] then return 'done' end
if was[1] ~= ARGV[1] then return 'changed' end
if ARGV[15] ~= '' and ARGV[15] ~= 'drop' and redis.call('HGET', KEYS[5], 'm') ~= ARGV[15] then return 'lost' end
-- a write that takes no memory comes first: after it a full server lets a script finish
redis.call('ZREM', KEYS[3], '')
local entry = was[3] or ''
if ARGV[7] == 'new' then
  entry = enqueue(KEYS[2], ARGV[9], ARGV[10], ARGV[13])
elseif ARGV[7] == 'hold' then
  redis.call('XCLAIM', KEYS[2], GROUP, RUNNING, 0, entry, 'JUSTID')
elseif ARGV[7] == 'wait' then
  wait_until(KEYS[2], KEYS[3], entry, ARGV[8], ARGV[13])
elseif ARGV[7] == 'over' and entry ~= '' then
  dequeue(KEYS[2], KEYS[3], entry)
  entry = ''
end
redis.call('HSET', KEYS[1], 'v', ARGV[3], 'r', ARGV[1] + 1, 'd', ARGV[2], 't', ARGV[4], 'c', ARGV[5], 'g', ARGV[6], 'e', entry,
  'b', ARGV[11])
redis.call('PEXPIRE', KEYS[1], ARGV[13])
if ARGV[14] == '1' then redis.call('DEL', KEYS[4]) else redis.call('PEXPIRE', KEYS[4], ARGV[13]) end
if ARGV[15] == 'drop' then
  redis.call('DEL', KEYS[5])
  redis.call('HDEL', KEYS[1], 'o')
elseif ARGV[15] ~= '' then
  redis.call('HSET', KEYS[1], 'o', ARGV[16])
  redis.call('PEXPIRE', KEYS[5], ARGV[13])
end
redis.call('ZADD', KEYS[6], ARGV[11], ARGV[12])
for i = 6, 8 do keep(KEYS[i], ARGV[13]) end
-- one that has no new result has none: only a job that is at its end has one, and that does not change any more, but when it is tried again
local bytes = (tonumber(redis.call('HGET', KEYS[4], 'm')) or 0) + (tonumber(ARGV[15]) or 0)
count(KEYS[9], KEYS[10], KEYS[1], record_of(ARGV[12], bytes, ARGV[19] == '1'), ARGV[11], ARGV[13])
if ARGV[20] ~= '' then
  redis.call('HDEL', KEYS[1], 'u', 'w')
  tell_at(KEYS[11], KEYS[12], ARGV[21], ARGV[9], ARGV[20] ~= 'never' and ARGV[20] or nil, ARGV[13])
end
if KEYS[13] and redis.call('GET', KEYS[13]) == ARGV[9] then keep(KEYS[13], ARGV[13]) end
if ARGV[7] == 'new' or ARGV[7] == 'wait' then redis.call('PUBLISH', ARGV[17], ARGV[18]) end
return 'done'
