-- Takes a job in, if its input is there and its idempotency key stands as it was read.
-- KEYS: 1 job, 2 input, 3 stream, 4 ends, 5 jobs, 6 jobs of the tenant, 7 upstreams, 8 idempotency key (none: the job),
--       9 the job that had this key (none: the job), 10 body of a result (none: the job),
--       11 records, 12 sums, 13 tenants with ends that are to be told, 14 the tenant's.
-- ARGV: 1 id, 2 value, 3 when it is removed, 4 its member of ends, 5 life of what is kept of it in ms, 6 bytes of the input (empty: it
--       is not needed), 7 upstream, 8 the most that wait (empty: this one does not), 9 created at, 10 whether there is an idempotency
--       key (1 or 0), 11 the id that it stood for (empty: none), 12 the revision of that job (empty: none), 13 channel, 14 message,
--       15 bytes of the result (empty: there is none), 16 its name, 17 tenant, 18 the most of the tenant that wait, 19 the most
--       bytes, 20 the most of the tenant, 21 when its end is to be told (empty: never).
if redis.call('HGET', KEYS[1], 'r') then return 'there' end
if ARGV[10] == '1' then
  if (redis.call('GET', KEYS[8]) or '') ~= ARGV[11] then return 'changed' end
  if ARGV[11] ~= '' and (redis.call('HGET', KEYS[9], 'r') or '') ~= ARGV[12] then return 'changed' end
end
if ARGV[6] ~= '' and redis.call('HGET', KEYS[2], 'm') ~= ARGV[6] then return 'lost' end
if ARGV[15] ~= '' and redis.call('HGET', KEYS[10], 'm') ~= ARGV[15] then return 'lost' end
local waits = ARGV[8] ~= ''
local bytes = (tonumber(ARGV[6]) or 0) + (tonumber(ARGV[15]) or 0)
local sums = redis.call('HMGET', KEYS[12], '', ARGV[17], ARGV[17] .. ' ' .. ARGV[7])
for i = 1, 3 do sums[i] = tonumber(sums[i] or 0) end
if waits and redis.call('XLEN', KEYS[3]) - running(KEYS[3]) >= tonumber(ARGV[8]) then return 'full queue' end
if waits and sums[3] >= tonumber(ARGV[18]) then return 'full tenant queue' end
if sums[1] + bytes > tonumber(ARGV[19]) then return 'full bytes' end
if sums[2] + bytes > tonumber(ARGV[20]) then return 'full tenant bytes' end
local entry = waits and enqueue(KEYS[3], ARGV[1], ARGV[9], ARGV[5]) or ''
redis.call('HSET', KEYS[1], 'v', ARGV[2], 'r', '1', 'e', entry, 'b', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
if ARGV[15] ~= '' then
  redis.call('HSET', KEYS[1], 'o', ARGV[16])
  redis.call('PEXPIRE', KEYS[10], ARGV[5])
end
redis.call('ZADD', KEYS[4], ARGV[3], ARGV[4])
redis.call('ZADD', KEYS[5], 0, ARGV[1])
redis.call('ZADD', KEYS[6], 0, ARGV[1])
redis.call('SADD', KEYS[7], ARGV[7])
for i = 4, 7 do keep(KEYS[i], ARGV[5]) end
count(KEYS[11], KEYS[12], KEYS[1], record_of(ARGV[4], bytes, waits), ARGV[3], ARGV[5])
if ARGV[10] == '1' then redis.call('SET', KEYS[8], ARGV[1], 'PX', ARGV[5]) end
if ARGV[21] ~= '' then tell_at(KEYS[13], KEYS[14], ARGV[17], ARGV[1], ARGV[21], ARGV[5]) end
if entry ~= '' then redis.call('PUBLISH', ARGV[13], ARGV[14]) end
return 'new'
